#!/bin/bash
# sbatch -N 16 run.sh
#SBATCH -N 16
#SBATCH --ntasks-per-node 8
#SBATCH --gres=gpu:8

DIR=`pwd`
STAMP=`date +'date_%y-%m-%d_time_%H-%M-%S'`
mkdir -p $DIR/logs

TP=2
PP=8
EP=8
ETP=1
options=" \
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP \
    --expert-model-parallel-size $EP --expert-tensor-parallel-size $ETP \
    --num-virtual-stages-per-pipeline-rank 7 --sequence-parallel \
    --num-layers 56 --hidden-size 6144 --ffn-hidden-size 16384 --num-attention-heads 48 \
    --group-query-attention --num-query-groups 8 --swiglu --disable-bias-linear \
    --normalization RMSNorm --position-embedding-type rope --rotary-base 1000000 \
    --untie-embeddings-and-output-weights --attention-dropout 0.0 --hidden-dropout 0.0 \
    --seq-length 4096 --max-position-embeddings 65536 --vocab-size 32768 \
    --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --moe-permute-fusion \
    --moe-token-dispatcher-type flex --moe-enable-deepep --moe-router-dtype fp32 \
    --recompute-granularity selective --recompute-modules layernorm moe_act \
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \
    --cross-entropy-loss-fusion --cross-entropy-fusion-impl te \
    --bf16 --micro-batch-size 1 --global-batch-size 512 --mock-data"
run_cmd="cd ${DIR} && python -u pretrain_gpt.py ${options}"

srun -l --container-image "nvcr.io/nvidia/nemo:25.04" \
     --output=$DIR/logs/%x_%j_$STAMP.log sh -c "${run_cmd}"
