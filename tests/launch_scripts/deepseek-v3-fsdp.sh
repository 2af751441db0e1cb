#!/bin/bash
ROOT=${ROOT:-"/lustre/me"}
IMAGE=${IMAGE:-"me/megatron:fsdp"}
FSDP=${FSDP:-1}
STRATEGY=${STRATEGY:-"optim_grads_params"}
TP=${TP:-1}
EP=${EP:-8}
MBS=${MBS:-4}
GBS=${GBS:-2048}
COMMENT=${COMMENT:-""}

ARGS=(
    --distributed-timeout-minutes 60
    --tensor-model-parallel-size ${TP} --expert-model-parallel-size ${EP}
    --expert-tensor-parallel-size 1 --context-parallel-size 1
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --use-mcore-models --sequence-parallel --use-flash-attn --disable-bias-linear
    --micro-batch-size ${MBS} --global-batch-size ${GBS} --train-samples 585937500
    --recompute-granularity selective --recompute-modules mlp moe_act mla_up_proj layernorm
    --seq-length 4096 --data-path ${ROOT}/data --split 99,1,0
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model deepseek-ai/DeepSeek-V3
    --num-layers 61 --hidden-size 7168 --ffn-hidden-size 18432 --num-attention-heads 128
    --kv-channels 128 --max-position-embeddings 4096 --position-embedding-type rope
    --rotary-base 10000 --make-vocab-size-divisible-by 3232 --normalization RMSNorm
    --norm-epsilon 1e-6 --swiglu --untie-embeddings-and-output-weights
    --multi-latent-attention --attention-dropout 0.0 --hidden-dropout 0.0 --qk-layernorm
    --num-experts 256 --moe-layer-freq [0]*3+[1]*58 --moe-ffn-hidden-size 2048
    --moe-shared-expert-intermediate-size 2048 --moe-router-load-balancing-type seq_aux_loss
    --moe-router-topk 8 --moe-token-dispatcher-type flex --moe-flex-dispatcher-backend hybridep
    --moe-grouped-gemm --moe-router-group-topk 4 --moe-router-num-groups 8
    --moe-router-topk-scaling-factor 2.5 --moe-router-score-function sigmoid
    --moe-router-enable-expert-bias --moe-router-bias-update-rate 1e-3 --moe-router-dtype fp32
    --q-lora-rank 1536 --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64
    --v-head-dim 128 --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0
    --mtp-num-layers 1 --mtp-loss-scaling-factor 0.1 --bf16
)
if [ "${FSDP}" = 1 ]; then
    ARGS=(
        "${ARGS[@]}"
        --use-megatron-fsdp
        --data-parallel-sharding-strategy ${STRATEGY}
        --ckpt-format fsdp_dtensor
        --calculate-per-token-loss
    )
fi
CMD="cd /opt/megatron-lm; git rev-parse HEAD; python /opt/megatron-lm/pretrain_gpt.py ${ARGS[@]}"
LOGS="${ROOT}/logs"
mkdir -p ${LOGS} || {
    echo "Error: no folder ${LOGS}"
    exit 1
}
set +e
sbatch <<EOF
#!/bin/bash
#SBATCH --job-name=dsv3${COMMENT}
#SBATCH --nodes=64
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --exclusive

srun --mpi=pmix -l --container-image=${IMAGE} --container-workdir=/opt \
    bash -x -c "${CMD}" 2>&1 | tee ${LOGS}/\${SLURM_JOB_ID}.log
EOF
set -e
