"""Pack mini's weights in the installed package: LZMA is told that a number has two bytes; a wheel's zip cannot know.

``st_reba.bases.place_of`` unpacks them. All else is in pyproject.toml and setup.cfg.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class PackedWeights(build_py):
    """Copy the package, and pack the weights in the copy."""

    def run(self) -> None:
        super().run()
        for weights in Path(self.build_lib).glob("st_reba/*/model.safetensors"):
            import lzma  # here, as not every Python has it, and a checkout packs nothing

            two_bytes = {"id": lzma.FILTER_LZMA2, "preset": 6, "lp": 1, "pb": 1}
            packed = lzma.compress(weights.read_bytes(), filters=[two_bytes])
            weights.with_suffix(".safetensors.xz").write_bytes(packed)
            weights.unlink()


setup(cmdclass={"build_py": PackedWeights})
