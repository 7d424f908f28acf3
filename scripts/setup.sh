# Sourced by demo and test: virtual environments, made once and used again.
#
#   prepare_environment FOLDER EXTRA [REQUIREMENT ...]      with this checkout installed
#   prepare_stranger FOLDER FILE                            without it, with what a file of requirements names
#   prepare_wheel FOLDER WHEEL                              with a wheel, what it asks for, and pytest
#
# set PYTHON to the environment's interpreter.
#
#   prepare_chromium        sets ST_REBA_CHROMIUM to a browser
#   prepare_node            sets ST_REBA_NODE to a folder with transformers.js

# So that each module is compiled once, not at every start.
unset PYTHONDONTWRITEBYTECODE

# All that pyproject.toml says before the settings of tools.
requirements() {
    sed '/^\[tool/,$d' pyproject.toml
}

prepare_environment() {
    local folder="$1" extra="$2"
    shift 2
    make_environment "$folder"
    install_once "$folder" "$extra" "$extra $* $(requirements)" --editable ".[$extra]" "$@"
}

prepare_stranger() {
    make_environment "$1"
    install_once "$1" requirements "$(cat "$2")" --requirement "$2"
}

prepare_wheel() {
    make_environment "$1"
    install_once "$1" wheel "$(requirements)" "$2" pytest
    "$PYTHON" -m pip install --quiet --force-reinstall --no-deps "$2"
}

make_environment() {
    local folder="$1" base="${PYTHON:-python3}"
    if ! "$base" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "st_reba needs Python 3.11 or newer; '$base' is not. Set PYTHON to one, as in: PYTHON=python3.12 $0" >&2
        exit 2
    fi
    if [ ! -x "$folder/bin/python" ] && ! "$base" -m venv "$folder"; then
        echo "Could not make a virtual environment in $folder: install Python's venv module and try again." >&2
        rm -rf "$folder"
        exit 2
    fi
    PYTHON="$folder/bin/python"
}

# Installed again only when what is wanted changes; what the demo wants and what the tests want stand side by side.
install_once() {
    local folder="$1" stamp="$1/installed-$2" wanted="$3"
    shift 3
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
        return
    fi
    echo "Setting up $folder (once; a minute or two) ..." >&2
    if ! command -v nvidia-smi >/dev/null 2>&1; then
        install_cpu_torch
    fi
    # uv takes seconds where pip takes a minute, but knows nothing of pip's settings, such as an index of one's own.
    if ! { "$PYTHON" -m pip install --quiet uv &&
        "$PYTHON" -m uv pip install --quiet --python "$PYTHON" "$@"; } 2>/dev/null; then
        "$PYTHON" -m pip install --quiet --no-compile "$@"
    fi
    printf '%s' "$wanted" >"$stamp"
}

# Without an NVIDIA driver, torch's CPU build does all that the several gigabytes of CUDA packages would do. Package
# indexes that offer one mark its version by "+cpu".
install_cpu_torch() {
    if "$PYTHON" -c 'import torch' 2>/dev/null; then
        return
    fi
    local version
    version=$("$PYTHON" -m pip index versions torch 2>/dev/null | grep -o '[0-9][0-9.]*+cpu' | head -n 1) || true
    if [ -n "$version" ] && "$PYTHON" -m pip install --quiet --no-compile "torch==$version"; then
        return
    fi
    echo "The package index offers no CPU build of torch: the default build follows." >&2
}

# transformers.js and what it runs on, as npm has them, without their scripts: one would fetch a build for NVIDIA's.
prepare_node() {
    local wanted="@huggingface/transformers@^4.3"
    command -v npm >/dev/null 2>&1 || install_on_debian "transformers.js is run by node" nodejs npm
    if [ "$(cat .node/installed 2>/dev/null)" != "$wanted" ]; then
        echo "Setting up .node (once) ..." >&2
        npm install --silent --ignore-scripts --no-audit --no-fund --prefix .node "$wanted" >&2
        printf '%s' "$wanted" >.node/installed
    fi
    export ST_REBA_NODE="$PWD/.node"
}

prepare_chromium() {
    local names="chromium chromium-browser google-chrome"
    command -v $names >/dev/null || install_on_debian "The page, also in Chinese, is tested in Chromium" chromium \
        fonts-noto-cjk
    ST_REBA_CHROMIUM=$(command -v $names | head -n 1)
    export ST_REBA_CHROMIUM
}

install_on_debian() {
    local why="$1"
    shift
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        echo "$why, which was not found. Install it; on Debian: sudo apt-get install $*" >&2
        exit 2
    fi
    apt-get update -q >&2
    apt-get install -q --yes --no-install-recommends "$@" >&2
}
