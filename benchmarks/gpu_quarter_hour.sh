#!/usr/bin/env bash
# The stages of gpu_quarter_hour.py, also on a machine where the package is not installed: from the checkout's root,
# with the wheels of gpu_pack.py in .gpu/wheels, which are put into a folder of their own. Nothing else is changed there.
#
#   bash benchmarks/gpu_quarter_hour.sh                  all stages, about 8 minutes
#   bash benchmarks/gpu_quarter_hour.sh check lora       some
#   DEVICE=cpu SHAPES=tiny bash benchmarks/gpu_quarter_hour.sh      the same code without a GPU
#
# OUT: folder of the results (results/gpu); PYTHON: interpreter (python3).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
export PYTHONPATH=$PWD/src${PYTHONPATH:+:$PYTHONPATH}
if compgen -G ".gpu/wheels/*.whl" > /dev/null; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" .gpu/wheels/*.whl
    export PYTHONPATH=$site:$PYTHONPATH
fi
"$python" benchmarks/gpu_quarter_hour.py --output "${OUT:-results/gpu}" --device "${DEVICE:-cuda}" \
    --shapes "${SHAPES:-full}" "$@"
