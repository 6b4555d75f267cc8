#!/usr/bin/env bash
# Installs the package into the active environment. Snakemake runs a copy of this file from its working directory, so
# paths start there; LM_VALIDITY_SOURCE names the repository where that is another folder.

set -euo pipefail

source=${LM_VALIDITY_SOURCE:-$PWD}
if [ ! -f "$source/envs/constraints.txt" ]; then
    echo "Error: $source is not the root of lm-validity. Hint: set LM_VALIDITY_SOURCE to it." >&2
    exit 1
fi
python -m pip install --constraint "$source/envs/constraints.txt" --editable "$source"
