#!/usr/bin/env bash
# Remake the nano model that the quickstart trains: tokenizer, random weights, demonstrations, supervised fine-tuning.
# About 15 minutes on one CPU core. The first argument is where the model goes; without it, the shipped folder is replaced.
set -euo pipefail
cd "$(dirname "$0")/../.."
model=${1:-agentverl/data/nano}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH="$PWD/.venv/bin:$PATH"

python examples/data/nano_demonstrations.py "$work/demonstrations.jsonl"
python examples/nano/make_model.py "$work/start" --demonstrations "$work/demonstrations.jsonl"
agentverl sft examples/nano/sft.yaml data.train_files="$work/demonstrations.jsonl" model.path="$work/start" \
    trainer.default_local_dir="$work/run"
mkdir -p "$model"
cp "$work/start/"{tokenizer.json,tokenizer_config.json,chat_template.jinja,generation_config.json} "$model"
cp "$work/run/huggingface/"{config.json,model.safetensors} "$model"
chmod 644 "$model"/*
echo "The nano model is in $model"
