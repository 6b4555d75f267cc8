#!/usr/bin/env bash
# Creates or updates .venv with the versions of envs/constraints.txt. The Makefile runs it; running it again is harmless.
#
#   envs/bootstrap.sh [EXTRAS]     extras of pyproject.toml, e.g. cells,slurm,test
#   PYTHON=/path/to/python3        interpreter (default: the first usable of python3.11, 3.12, 3.13, python3)
#   TORCH_INDEX=URL                take torch from this package index, e.g. https://download.pytorch.org/whl/cpu

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

extras=${1:-}
here=$(pwd -P)
log=.venv/install.log

# An activated .venv must not be the base of its own replacement.
PATH=":$PATH:"
PATH=${PATH//":$here/.venv/bin:"/:}
PATH=${PATH#:}
PATH=${PATH%:}

fail() {
    printf 'Error: %s Hint: %s\n' "$1" "$2" >&2
    exit 1
}

# -I: neither the current folder nor PYTHONPATH may shadow the standard library
is_recent() { "$1" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
can_make_venv() { "$1" -I -c 'import ensurepip, venv' 2>/dev/null; }

find_python() {
    local candidate recent=
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        is_recent "$candidate" || continue
        recent=$candidate
        if can_make_venv "$candidate"; then
            python=$candidate
            return
        fi
    done
    if [ -n "$recent" ]; then
        fail "$recent cannot create virtual environments (its venv or ensurepip module is missing)." \
            "on Debian and Ubuntu: apt-get install python3-venv."
    fi
    fail "no Python 3.11 or newer found (tried: ${PYTHON:-python3.11 python3.12 python3.13 python3})." \
        "install one, or name it: make demo PYTHON=/path/to/python3.12."
}

# A .venv that was copied or moved has scripts that start another folder's interpreter.
is_usable() {
    [ -x .venv/bin/python ] && is_recent .venv/bin/python && grep -qsF "$here/.venv/bin" .venv/bin/pip
}

# Run a command whose messages go into the log, and the important ones to the screen.
logged() {
    "$@" 2>&1 | tee -a "$log" |
        { grep --line-buffered -oE '^(Collecting [^ ]+| *Downloading [^ ]+ \([^)]*\)|Installing collected packages|Prepared .*|Installed .*|ERROR.*)' ||
            true; }
}

# A setting of pip, from the environment or its files, several joined by $2; nothing where there is none.
setting() {
    sed -nE "s/^(:env:|global|install)\.$1='(.*)'$/\2/p" <<<"$settings" | head -n 1 |
        sed -E "s/(\\\\n| )+/$2/g"
}

# uv takes a third of pip's time, but does not read pip's settings. What it cannot install pip tries, and says why.
install_by_uv() {
    .venv/bin/python -m pip --quiet install --no-compile --only-binary :all: --constraint envs/constraints.txt uv \
        >>"$log" 2>&1 || return
    local settings
    settings=$(.venv/bin/python -m pip config list)
    env UV_DEFAULT_INDEX="$(setting index-url ' ')" UV_INDEX="$(setting extra-index-url ' ')" \
        UV_FIND_LINKS="$(setting find-links ,)" SSL_CERT_FILE="${SSL_CERT_FILE:-$(setting cert ' ')}" \
        .venv/bin/uv pip install --python .venv/bin/python --index-strategy unsafe-best-match "$@"
}

install() {
    if logged install_by_uv "$@" ||
        logged .venv/bin/python -m pip --disable-pip-version-check install --progress-bar off --no-compile "$@"; then
        return
    fi
    if grep -qE 'NewConnectionError|NameResolutionError|name resolution|Network is unreachable|Timeout|ProxyError' "$log"; then
        fail "packages could not be downloaded: no network, or a proxy is needed (all messages: $log)." \
            "set HTTPS_PROXY, or PIP_INDEX_URL to an index that can be reached, and run the same command again."
    fi
    fail "the installation failed (all messages: $log)." "mend what its last lines name and run the same command again."
}

command -v git >/dev/null || fail "git was not found." "install it; results record the version of the code they come from."

if ! is_usable; then
    find_python
    echo "Creating .venv with $("$python" --version) ($(command -v "$python"))"
    "$python" -m venv --clear .venv
fi

: >"$log"
echo "Installing into .venv (the first time takes minutes; all messages: $log)"
if [ -n "${TORCH_INDEX:-}" ]; then
    # --no-deps: everything else comes from the usual index
    install --no-deps --index-url "$TORCH_INDEX" "$(grep '^torch==' envs/constraints.txt)"
fi
install --constraint envs/constraints.txt --editable ".${extras:+[$extras]}"
# What few commands import is compiled when it is imported. Packages ship some files that do not compile.
.venv/bin/python -m compileall -qq -j 0 .venv/lib \
    -x '/(tests|transformers/models|torch/(testing|_inductor)|mypyc?|nltk|pip|pygments/lexers|selenium|setuptools)/' || true
