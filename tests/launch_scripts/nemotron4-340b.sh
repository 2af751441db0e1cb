#!/bin/bash
#SBATCH -A llm -p batch -N 96 --ntasks-per-node=8 --time=4:00:00
#SBATCH --gpus-per-node 8
NAME="nemotron4-340b"; DIR="/lustre/${USER:-me}/${NAME}"
MEMORY_OPTIONS=""
if [ "${OFFLOAD:-0}" -eq 1 ]; then
  MEMORY_OPTIONS="--cpu-offloading-num-layers 1"
fi
cmd="python -u /opt/megatron/pretrain_gpt.py \
  --num-layers 96 --hidden-size 18432 --ffn-hidden-size 73728 --num-attention-heads 96 \
  --kv-channels 192 --group-query-attention --num-query-groups 8 \
  --seq-length 4096 --max-position-embeddings 4096 --position-embedding-type rope \
  --rotary-percent 0.5 --squared-relu --disable-bias-linear \
  --untie-embeddings-and-output-weights --vocab-size 256000 --hidden-dropout 0 --attention-dropout 0 \
  --tensor-model-parallel-size 8 --pipeline-model-parallel-size 12 --sequence-parallel \
  --num-layers-per-virtual-pipeline-stage 1 --tp-comm-overlap \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
  --micro-batch-size 1 --global-batch-size 2304 --bf16 ${MEMORY_OPTIONS}"
srun --output "${DIR}/%j.log" bash -c "
  export CUDA_DEVICE_MAX_CONNECTIONS=1
  ${cmd}
"
