"""Save, verify and publish models.

>>> import st_reba
>>> from st_reba import hub
>>> hub.save(st_reba.build("mini"), "my_model")
>>> hub.verify("my_model").ok
True
"""

from __future__ import annotations

from .push import push as push
from .save import save as save
from .verify import verify as verify
