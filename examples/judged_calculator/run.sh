#!/usr/bin/env bash
# The whole example: demonstrations, policy and judge fine-tuned from the nano model, the judge served, GRPO, the curves.
# The first argument is the folder for all of it; further ones are keys of the training. What is finished there is kept.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-outputs/judged_calculator}
shift || true
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" TOKENIZERS_PARALLELISM=false
example=examples/judged_calculator

[ -f "$folder/data/judge.jsonl" ] || python "$example/make_data.py" "$folder/data" --count "${COUNT:-6000}"
for role in policy judge; do
    [ -f "$folder/$role/summary.json" ] || agentverl sft "$example/sft.yaml" data.train_files="$folder/data/$role.jsonl" \
        trainer.default_local_dir="$folder/$role"
done

agentverl serve "$folder/judge/huggingface" --name judge --port 0 > "$folder/judge.log" &
judge=$!
trap 'kill $judge' EXIT
until grep -q '^serving' "$folder/judge.log"; do
    kill -0 $judge 2> /dev/null || { echo "the judge did not start"; exit 1; }
    sleep 0.2
done
JUDGE_URL=$(sed -n 's/^serving judge at //p' "$folder/judge.log")
export JUDGE_URL

agentverl train "$example/train.yaml" model.path="$folder/policy/huggingface" \
    trainer.default_local_dir="$folder/run" "$@"
python "$example/draw.py" "$folder/run" "$folder/components.png"
