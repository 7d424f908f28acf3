"""The loopback Hub, held against huggingface_hub's own client: without it the other tests would prove nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import huggingface_hub.constants as constants
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from server import Hub

SMALL, LARGE = b'{"a": 1}\n', bytes(range(256)) * 400


@pytest.fixture
def api(hub: Hub) -> HfApi:
    api = HfApi()
    api.create_repo("org/model")
    first = [CommitOperationAdd("config.json", SMALL), CommitOperationAdd("sub/model.safetensors", LARGE)]
    api.create_commit("org/model", first, commit_message="first")
    return api


def test_a_commit_is_kept_with_its_content_and_its_parent(hub: Hub, api: HfApi) -> None:
    first = api.model_info("org/model").sha
    tree = {entry.path: entry for entry in api.list_repo_tree("org/model", recursive=True)}
    assert set(tree) == {".gitattributes", "config.json", "sub", "sub/model.safetensors"}
    assert tree["sub/model.safetensors"].lfs.sha256 == hashlib.sha256(LARGE).hexdigest()
    assert tree["config.json"].lfs is None and tree["config.json"].size == len(SMALL)
    api.create_commit("org/model", [CommitOperationDelete("config.json")], commit_message="second", parent_commit=first)
    assert set(hub.repos["org/model"].files()) == {".gitattributes", "sub/model.safetensors"}
    assert "config.json" in hub.repos["org/model"].files(str(first))
    with pytest.raises(HfHubHTTPError, match="412"):
        api.create_commit(
            "org/model", [CommitOperationAdd("b.json", SMALL)], commit_message="late", parent_commit=first
        )


def test_downloads_by_branch_tag_commit_and_from_the_cache(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    first = str(api.model_info("org/model").sha)
    api.create_tag("org/model", tag="v1")
    api.create_branch("org/model", branch="next/one")
    api.create_commit("org/model", [CommitOperationAdd("config.json", b"{}")], commit_message="x", revision="next/one")
    for revision, content in ((None, SMALL), ("v1", SMALL), (first, SMALL), ("next/one", b"{}")):
        path = hf_hub_download("org/model", "config.json", revision=revision, cache_dir=tmp_path)
        assert Path(path).read_bytes() == content
    folder = Path(snapshot_download("org/model", cache_dir=tmp_path))
    assert (folder / "sub/model.safetensors").read_bytes() == LARGE
    before = hub.count("cdn")
    snapshot_download("org/model", cache_dir=tmp_path)
    assert hub.count("cdn") == before == 1


def test_the_token_is_not_told_to_where_large_files_lie(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    hf_hub_download("org/model", "sub/model.safetensors", cache_dir=tmp_path)
    large = [seen for seen in hub.seen if seen.endpoint == "cdn"]
    assert [seen.token for seen in large] == [None] and large[0].host.startswith("localhost")
    assert {seen.token for seen in hub.seen if seen.endpoint == "head"} == {"hf_writer"}


def test_a_cut_download_goes_on_where_it_ended(
    hub: Hub, api: HfApi, waits: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 10_000)
    hub.fail("cdn", "cut", after=50_000)
    path = hf_hub_download("org/model", "sub/model.safetensors", cache_dir=tmp_path)
    assert Path(path).read_bytes() == LARGE
    ranges = [seen.range for seen in hub.seen if seen.endpoint == "cdn"]
    assert ranges == [None, "bytes=50000-"] and waits == [1]


def test_a_short_file_is_refused_and_an_altered_upload_too(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    hub.fail("cdn", "short", times=9)
    with pytest.raises(OSError, match="should be of size 102400 but has size 51200"):
        hf_hub_download("org/model", "sub/model.safetensors", cache_dir=tmp_path)
    hub.fail("upload", "altered")
    with pytest.raises(RuntimeError, match=r"uploading 'b\.safetensors'") as raised:
        api.create_commit("org/model", [CommitOperationAdd("b.safetensors", LARGE + b"2")], commit_message="x")
    assert "BadDigest" in str(raised.value.__cause__)
    assert "b.safetensors" not in hub.repos["org/model"].files()


def test_what_is_not_there_or_not_allowed(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    api.create_repo("org/secret", private=True)
    with pytest.raises(EntryNotFoundError):
        hf_hub_download("org/model", "none.json", cache_dir=tmp_path)
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download("org/model", "config.json", revision="none", cache_dir=tmp_path)
    for token in (False, "hf_writer"):
        assert HfApi(token=token).repo_exists("org/secret") is bool(token)
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("org/none")
    with pytest.raises(HfHubHTTPError, match="401"):
        HfApi(token="hf_unknown").model_info("org/model")
    with pytest.raises(HfHubHTTPError, match="403"):
        HfApi(token="hf_reader").create_commit("org/model", [CommitOperationAdd("a.json", SMALL)], commit_message="x")
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_repo("org/model")
    assert str(api.create_repo("org/model", exist_ok=True)).endswith("/org/model")


def test_it_stops_and_nothing_answers_then(hub: Hub, api: HfApi) -> None:
    hub.stop()
    with pytest.raises(Exception, match=r"refused|closed|disconnected"):
        api.model_info("org/model")
