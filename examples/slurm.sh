#!/bin/bash
# Fits one data set as a SLURM job; a job that is killed or requeued resumes from its checkpoint.
#
#   sbatch examples/slurm.sh config.yaml results/run7
#
# Threads: SLURM_CPUS_PER_TASK, or JAXKERN_NUM_THREADS if set. Memory limit: the allocation of the
# job, or JAXKERN_MEMORY_LIMIT (GB) if set. Data that exceed it are read from the file in every pass.
#SBATCH --job-name=xpcs-fit
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --output=%x-%j.log
set -euo pipefail

config=${1:?usage: sbatch slurm.sh CONFIG [OUTPUT_DIR]}
output=${2:-results}

# Reserve memory for Python and XLA.
# In GB; with --mem=0 (all of the node) and for small jobs, the package chooses.
limit=$((${SLURM_MEM_PER_NODE:-0} * 8 / 10240))
if [[ $limit -gt 0 && -z ${JAXKERN_MEMORY_LIMIT:-} ]]; then
  export JAXKERN_MEMORY_LIMIT=$limit
fi

# srun inherits --cpus-per-task only if set here; CPU binding also limits XLA's thread pool.
exec ${SLURM_JOB_ID:+srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --cpu-bind=cores} \
  "${PYTHON:-python}" -m jaxkern xpcs fit --config "$config" --output-dir "$output" \
  --checkpoint-dir "$output/checkpoints"
