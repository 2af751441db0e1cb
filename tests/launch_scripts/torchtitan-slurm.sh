#!/bin/bash
#SBATCH --job-name=titan
#SBATCH --nodes=8
#SBATCH --ntasks=8
#SBATCH --gpus-per-task=8
#SBATCH --partition=train
TP=4
BATCH=${BATCH:-2}
CONFIG=/shared/$SLURM_JOB_ID.toml
nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${nodes[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
cat > $CONFIG <<END
[job]
dump_folder = "/shared/outputs"
[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = $BATCH
seq_len = 8192
[parallelism]
tensor_parallel_degree = $TP
fsdp_reshard_after_forward = "always"
[activation_checkpoint]
mode = "full"
END
export FI_PROVIDER=efa NCCL_SOCKET_IFNAME="eth0,en,eth,em,bond"
dcgmi profile --pause
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 --rdzv_id 101 --rdzv_backend c10d \
    --rdzv_endpoint "$head_node_ip:29500" -m torchtitan.train --job.config_file $CONFIG
