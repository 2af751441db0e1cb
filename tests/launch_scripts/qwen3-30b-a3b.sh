#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=12

export CUDA_DEVICE_MAX_CONNECTIONS=1 TORCH_NCCL_AVOID_RECORD_STREAMS=1
source /etc/profile.d/modules.sh

MODEL_OPTIONS="
  --num-layers 48
  --hidden-size 2048
  --ffn-hidden-size 6144
  --num-attention-heads 32
  --kv-channels 128
  --group-query-attention
  --num-query-groups 4
  --qk-layernorm
  --seq-length 4096
  --max-position-embeddings 40960
  --position-embedding-type rope
  --rotary-base 1000000
  --normalization RMSNorm
  --swiglu
  --disable-bias-linear
  --untie-embeddings-and-output-weights
  --attention-dropout 0.0
  --hidden-dropout 0.0
  --num-experts 128
  --moe-ffn-hidden-size 768
  --moe-router-topk 8
  --moe-router-load-balancing-type aux_loss
  --moe-aux-loss-coeff 1e-3
  --moe-grouped-gemm
  --moe-token-dispatcher-type alltoall
"
PARALLEL_OPTIONS="
  --tensor-model-parallel-size 2
  --expert-model-parallel-size 16
  --expert-tensor-parallel-size 1
  --sequence-parallel
  --use-distributed-optimizer
  --overlap-grad-reduce
  --overlap-param-gather
  --moe-shared-expert-overlap
"
srun --mpi=pmix python -u pretrain_gpt.py $MODEL_OPTIONS $PARALLEL_OPTIONS \
  --micro-batch-size 2 --global-batch-size $((SLURM_NTASKS / 2 * 2 * 4)) --bf16 \
  --tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen3-30B-A3B --data-path $DATA \
  --lr 1e-4 --min-lr 1e-5 --train-iters 1000 --enable-cuda-graph
