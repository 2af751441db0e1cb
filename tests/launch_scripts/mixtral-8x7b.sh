#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
NNODES=${SLURM_NNODES:-"4"}
GPN=8
CKPT=$1
TOKENIZER=$2
DIST=(--nproc_per_node $GPN --nnodes $NNODES --node_rank ${RANK:-"0"} --master_addr ${MASTER_ADDR:-"localhost"})
MODEL=(
    --use-mcore-models
    --disable-bias-linear
    --seq-length 4096 --max-position-embeddings 32768
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --init-method-std 0.01 --attention-dropout 0.0 --hidden-dropout 0.0
    --normalization RMSNorm --position-embedding-type rope --rotary-base 1000000 --swiglu
    --untie-embeddings-and-output-weights --group-query-attention --num-query-groups 8
    --no-masked-softmax-fusion --no-position-embedding
)
EXPERTS=(
    --num-experts 8 --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2
    --moe-grouped-gemm --moe-token-dispatcher-type alltoall
    --overlap-param-gather --overlap-grad-reduce
)
TRAINING=(--micro-batch-size 1 --global-batch-size 256 --lr 1e-4 --train-iters 500000 --bf16)
PARALLEL=(
    --tensor-model-parallel-size 1
    --pipeline-model-parallel-size 4
    --expert-model-parallel-size 8
    --use-distributed-optimizer
    --sequence-parallel
)
LOGGING=(--log-interval 1 \
    --save-interval 10000 --save $CKPT --load $CKPT --no-load-optim --no-load-rng)
if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING+=(--wandb-project ${WANDB_PROJECT:-"Mixtral"})
fi
torchrun ${DIST[@]} pretrain_gpt.py \
    ${MODEL[@]} ${EXPERTS[@]} ${TRAINING[@]} ${PARALLEL[@]} ${LOGGING[@]} \
    --tokenizer-type Llama2Tokenizer --tokenizer-model ${TOKENIZER} --data-path $3 --split 99990,8,2
