# Racewatch's images, a target each:
#
#   service      pages, API, webhook          runner     a GPU host's worker: no compiler
#   builder      compiles TransformerEngine   trial      runs its trials: no compiler
#   builder-cpu  the demo subject's builder   trial-cpu  and its trials
#
# The base images are arguments: any with Python 3.11 or newer (3.12 for builder and trial) on Debian
# or Ubuntu will do, such as your own with the certificates of your network. Nothing here needs
# BuildKit; stages come in an order that lets the classic builder stop early.

ARG PYTHON_IMAGE=python:3.12-slim-bookworm
ARG CUDA_IMAGE=nvidia/cuda:13.0.2-base-ubuntu24.04


# Racewatch and the packages it needs, pinned by hash, in a virtual environment.
FROM ${PYTHON_IMAGE} AS packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY requirements/ requirements/
RUN python3 -m venv /opt/racewatch \
 && python3 -m venv tools \
 && /opt/racewatch/bin/pip install --quiet --no-deps --require-hashes -r requirements/service.txt \
 && tools/bin/pip install --quiet --no-deps --require-hashes -r requirements/build.txt
# Clients of stores that fsspec has no client for itself: `s3`.
ARG STORES=""
RUN for store in ${STORES}; do \
      /opt/racewatch/bin/pip install --quiet --no-deps --require-hashes \
        -r "requirements/store-${store}.txt" || exit 1; \
    done
COPY pyproject.toml README.md ./
COPY runner/ runner/
COPY service/ service/
COPY dashboards/ dashboards/
RUN tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir wheel . \
 && /opt/racewatch/bin/pip install --quiet --no-deps wheel/*.whl


# Python, git and the account that everything runs as.
FROM ${PYTHON_IMAGE} AS base
RUN apt-get update -q \
 && apt-get install -qy --no-install-recommends ca-certificates git \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
 && groupadd --gid 61120 racewatch \
 && useradd --uid 61120 --gid 61120 --home-dir /var/lib/racewatch --shell /usr/sbin/nologin \
      --create-home racewatch
ENV PATH=/opt/racewatch/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    RACEWATCH_HOME=/var/lib/racewatch
WORKDIR /var/lib/racewatch


FROM base AS service
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="Racewatch service" \
      org.opencontainers.image.description="Pages, API and webhook of Racewatch" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=packages /opt/racewatch /opt/racewatch
COPY containers/ /usr/local/bin/
ENV RACEWATCH_HOST=0.0.0.0
USER racewatch
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=30s --retries=3 \
  CMD ["python", "-m", "service.alive", "service"]
CMD ["racewatch", "serve"]


FROM service AS runner
LABEL org.opencontainers.image.title="Racewatch runner" \
      org.opencontainers.image.description="A worker of Racewatch, which starts builders and trials"
# nvidia-smi, which tells what GPUs there are; CUDA itself is the trials'.
ENV NVIDIA_DRIVER_CAPABILITIES=utility
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s --retries=3 \
  CMD ["enter", "python", "-m", "service.alive", "worker"]
ENTRYPOINT ["enter"]
CMD ["racewatch", "worker", "--sandbox", "docker"]


# What runs the demo's trials: Python and the harness, which imports nothing else.
FROM ${PYTHON_IMAGE} AS trial-cpu
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="Racewatch trial, CPU" \
      org.opencontainers.image.description="Runs trials of the demo subject, with no network" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY runner/ /opt/racewatch/harness/runner/
ENV PYTHONPATH=/opt/racewatch/harness PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 61120:61120
WORKDIR /tmp
HEALTHCHECK NONE
CMD ["python3", "-m", "runner.trial.parent"]


# What compiles the demo; with the whole of Racewatch in it, also the worker of the profile `demo`.
FROM base AS builder-cpu
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="Racewatch builder, CPU" \
      org.opencontainers.image.description="Compiles the demo subject, with no network" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN apt-get update -q \
 && apt-get install -qy --no-install-recommends ccache g++ \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
COPY --from=packages /opt/racewatch /opt/racewatch
COPY containers/ /usr/local/bin/
USER racewatch
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
  CMD ["enter", "python", "-m", "service.alive", "worker"]
ENTRYPOINT ["enter"]
CMD ["racewatch", "worker", "--subject", "demo"]


# Python 3.12 and the account, on the image that has CUDA's.
FROM ${CUDA_IMAGE} AS cuda
RUN apt-get update -q \
 && apt-get install -qy --no-install-recommends ca-certificates libstdc++6 \
      $(command -v python3.12 >/dev/null || echo python3.12 python3.12-venv) \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
 && groupadd --gid 61120 racewatch \
 && useradd --uid 61120 --gid 61120 --home-dir /var/lib/racewatch --shell /usr/sbin/nologin \
      --create-home racewatch
ENV PATH=/opt/racewatch/bin:/usr/local/nvidia/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    # No GPU but one that is asked for, also where the NVIDIA runtime is the engine's default.
    NVIDIA_VISIBLE_DEVICES=void NVIDIA_DRIVER_CAPABILITIES=compute,utility


# JAX and CUDA's libraries, as the toolchain has them, and what TE imports besides.
FROM cuda AS trial-packages
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
COPY requirements/trial.txt runner/toolchains/node-python3.12.txt /build/
# Compilers that came along go: ptxas, which XLA needs, stays.
RUN python3.12 -m venv /opt/racewatch \
 && /opt/racewatch/bin/pip install --quiet --no-deps --no-compile --require-hashes \
      -r /build/trial.txt -r /build/node-python3.12.txt \
 && /opt/racewatch/bin/pip uninstall --quiet --yes pip \
 && cd /opt/racewatch/lib/python3.12/site-packages/nvidia/cu13 \
 && rm -f bin/nvcc bin/nvcc.profile bin/cudafe++ bin/bin2c bin/crt/* nvvm/bin/cicc \
 && find .. -name '*.a' -delete


FROM cuda AS trial
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="Racewatch trial" \
      org.opencontainers.image.description="Runs trials of TransformerEngine on one GPU, with no network" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=trial-packages /opt/racewatch /opt/racewatch
# TE's core asks the loader for NCCL, cuDNN and cuBLAS before JAX has loaded its own.
RUN for part in cu13 cudnn nccl; do \
      echo /opt/racewatch/lib/python3.12/site-packages/nvidia/${part}/lib; \
    done >/etc/ld.so.conf.d/racewatch.conf \
 && ldconfig
COPY runner/ /opt/racewatch/harness/runner/
ENV PYTHONPATH=/opt/racewatch/harness
USER racewatch
WORKDIR /tmp
HEALTHCHECK NONE
CMD ["python3", "-m", "runner.trial.parent"]


# Compilers, and the toolchain cu13-jax011 where the runner looks for it: CUDA 13's compiler, headers
# and libraries, cuDNN, NCCL and jaxlib. They are the same pinned packages as everywhere else, and no
# installed toolkit, so that a build has the same key wherever it is made.
FROM cuda AS builder
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.title="Racewatch builder" \
      org.opencontainers.image.description="Compiles TransformerEngine, with no network" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN apt-get update -q \
 && apt-get install -qy --no-install-recommends ccache g++ git make \
      $([ -e "$(python3.12 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ] \
        || echo python3.12-dev) \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
COPY requirements/service.txt /build/
COPY runner/ /build/runner/
RUN export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_COMPILE=1 \
 && cd /build \
 && python3.12 -m venv /tmp/tools \
 && /tmp/tools/bin/pip install --quiet --no-deps --require-hashes -r service.txt \
 && /tmp/tools/bin/python -c "from runner import toolchain; \
env = toolchain.prepare(toolchain.load(), toolchain.IMAGE_CACHE); toolchain.prepare_core(env)" \
 && rm -rf /tmp/tools
USER racewatch
WORKDIR /tmp
HEALTHCHECK NONE
CMD ["g++", "--version"]
