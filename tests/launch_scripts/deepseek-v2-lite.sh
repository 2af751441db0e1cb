#!/bin/bash
# usage: bash run.sh dsw A2.4B 1 8 1e-5 1e-6 4096 4096 bf16 1 1 1 4 sel true true true
set -e
ENV=${1:-dsw}
CURRENT_DIR="$( cd "$( dirname "$0" )" && pwd )"
PATCH_PATH=$( dirname $( dirname ${CURRENT_DIR}))
export PYTHONPATH=${PATCH_PATH}:${PATCH_PATH}/backends/megatron:$PYTHONPATH
if [ $ENV = dsw ]; then
    MASTER_ADDR=localhost
    MASTER_PORT=$(shuf -n 1 -i 10000-65535)
    NNODES=1
    NODE_RANK=0
    GPUS_PER_NODE=8
elif [ $ENV = dlc ]; then
    NNODES=${WORLD_SIZE}
    NODE_RANK=${RANK}
    GPUS_PER_NODE=${KUBERNETES_CONTAINER_RESOURCE_GPU}
fi
DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK"

MODEL_SIZE=${2:-A2.4B}
BATCH_SIZE=${3:-1}
GLOBAL_BATCH_SIZE=${4:-64}
LR=${5:-1e-5}
MIN_LR=${6:-1e-6}
SEQ_LEN=${7:-4096}
PR=${9:-bf16}
TP=${10:-2}
PP=${11:-1}
CP=${12:-1}
EP=${13:-4}
AC=${14:-sel}
DO=${15:-true}
FL=${16:-true}
SP=${17:-true}

if [ $MODEL_SIZE = A2.4B ]; then
HIDDEN_SIZE=2048
NUM_ATTN_HEADS=16
NUM_LAYERS=27
INTERMEDIATE_SIZE=10944
MOE_INTERMEDIATE_SIZE=1408
EXTRA_VOCAB_SIZE=2400
KV_LORA_RANK=512
NUM_EXPERTS=64
ROUTER_TOPK=6
NUM_SHARED_EXPERTS=2
MOE_LAYER_FREQ=1

moe_options=" \
    --moe-ffn-hidden-size ${MOE_INTERMEDIATE_SIZE} \
    --moe-router-topk ${ROUTER_TOPK} \
    --num-experts ${NUM_EXPERTS} \
    --moe-layer-freq '([0]*1+[1]*26)' \
    --moe-aux-loss-coeff 1e-2 \
    --moe-shared-expert-intermediate-size $((${MOE_INTERMEDIATE_SIZE} * ${NUM_SHARED_EXPERTS} )) \
    --expert-model-parallel-size ${EP} \
    --expert-tensor-parallel-size 1 \
    --moe-grouped-gemm --moe-token-dispatcher-type alltoall \
    --kv-lora-rank ${KV_LORA_RANK} --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128"
elif [ $MODEL_SIZE = A21B ]; then
HIDDEN_SIZE=5120
fi

if [ $AC = full ]; then
    activation_checkpoint_options="--recompute-method uniform --recompute-num-layers 1 --recompute-granularity full"
elif [ $AC = sel ]; then
    activation_checkpoint_options="--recompute-activations"
elif [ $AC = none ]; then
    activation_checkpoint_options=" "
fi
if [ $PR = fp16 ]; then
    pr_options="--fp16 --apply-query-key-layer-scaling"
elif [ $PR = bf16 ]; then
    pr_options="--bf16"
fi
[ $DO = true ] && do_options="--use-distributed-optimizer" || do_options=" "
if [ $FL = true ]; then flash_options=" --use-flash-attn"; elif [ $FL = false ]; then flash_options=" "; fi
if [ $SP = true ] && [ $TP -gt 1 ]; then
    sp_options=" --sequence-parallel"
elif [ $SP = false ]; then
    sp_options=" "
fi

megatron_options="  \
        --lr ${LR} --min-lr ${MIN_LR} --lr-decay-style cosine --weight-decay 0.1 --clip-grad 1.0 \
        --attention-dropout 0.0 --hidden-dropout 0.0 --init-method-std 0.008 \
        --num-layers ${NUM_LAYERS} --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads ${NUM_ATTN_HEADS} --ffn-hidden-size ${INTERMEDIATE_SIZE} \
        --seq-length ${SEQ_LEN} --max-position-embeddings ${SEQ_LEN} \
        --micro-batch-size ${BATCH_SIZE} --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \
        --context-parallel-size ${CP} \
        --extra-vocab-size ${EXTRA_VOCAB_SIZE} --patch-tokenizer-type DeepSeekV2Tokenizer \
        --swiglu --normalization RMSNorm --norm-epsilon 1e-06 --use-rotary-position-embeddings \
        --no-bias-swiglu-fusion --no-rope-fusion --position-embedding-type rope \
        --untie-embeddings-and-output-weights --disable-bias-linear --rotary-base 10000 \
        --multi-latent-attention --qk-layernorm --rotary-scaling-factor 40 \
        --use-mcore-models --dataset LLama-Pretrain-Idxmap --eod-mask-loss"

run_cmd="torchrun $DISTRIBUTED_ARGS ../pretrain_deepseek.py
 ${megatron_options} ${pr_options} ${activation_checkpoint_options} ${moe_options} \
 ${do_options} ${flash_options} ${sp_options}"

echo ${run_cmd}
eval ${run_cmd}
set +x
