#!/bin/bash
#SBATCH --job-name=llama3-70b
#SBATCH --partition=batch
#SBATCH --nodes=32
#SBATCH --gpus-per-node=8
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive --mem=0
#SBATCH --time=04:00:00
set -eux -o pipefail

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=29500
export NVTE_FUSED_ATTN=1

TP=4
PP=4
VP=5
CP=2
MBS=1
GBS=$(( SLURM_NNODES * 8 / (TP * PP * CP) * 16 ))

ARGS=" \
  --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64 \
  --group-query-attention --num-query-groups 8 \
  --seq-length 8192 --max-position-embeddings 8192 \
  --use-rotary-position-embeddings --rotary-base 500000 --no-position-embedding \
  --swiglu --normalization RMSNorm --disable-bias-linear \
  --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-70B \
  --vocab-size 128256 --make-vocab-size-divisible-by 128 \
"
PARALLEL="--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
  --num-layers-per-virtual-pipeline-stage $(( 80 / PP / VP )) \
  --context-parallel-size ${CP} --cp-comm-type p2p --sequence-parallel \
  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --tp-comm-overlap"
TRAINING="--bf16 --micro-batch-size $MBS --global-batch-size $GBS --lr 1.5e-4 --train-iters 2000"

srun --container-image=nvcr.io#nvidia/pytorch:25.06-py3 \
     --container-mounts="/lustre:/lustre" \
     torchrun --nproc_per_node=$SLURM_GPUS_PER_NODE --nnodes=$SLURM_NNODES \
     --rdzv_id=$RANDOM --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT \
     pretrain_gpt.py ${ARGS} ${PARALLEL} ${TRAINING} --data-path ${DATA_PATH:?"where is the data"}
