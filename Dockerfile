# syntax=docker/dockerfile:1
#
#   docker build --target cpu -t backpass:cpu .
#   docker build --target gpu -t backpass:gpu .       CUDA libraries come from wheels, the driver from the host

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# --- the environment, without pip: the builder's pip installs into it ---------------------------------------------
FROM ${PYTHON_IMAGE} AS builder
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
RUN python -m venv --without-pip /opt/backpass
COPY requirements/build.txt requirements/run.txt requirements/
RUN pip --python /opt/backpass/bin/python install --quiet --no-compile --require-hashes \
        -r requirements/build.txt -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY core core
COPY service service
RUN pip --python /opt/backpass/bin/python install --quiet --no-compile --no-deps --no-build-isolation . \
 && pip --python /opt/backpass/bin/python uninstall --quiet --yes setuptools \
 && /opt/backpass/bin/python -m compileall -q /opt/backpass/lib

FROM builder AS gpu-builder
COPY requirements/gpu.txt requirements/
RUN pip --python /opt/backpass/bin/python install --quiet --no-compile --require-hashes -r requirements/gpu.txt \
 && /opt/backpass/bin/python -m compileall -q /opt/backpass/lib

# --- the common part of both images: a user, directories for volumes, the start command ---------------------------
FROM ${PYTHON_IMAGE} AS base
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Backpass" \
      org.opencontainers.image.description="A REST microservice that compiles and executes backward passes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN groupadd --gid 10001 backpass \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/backpass --shell /usr/sbin/nologin backpass \
 && install -d -o 10001 -g 10001 -m 0750 /var/lib/backpass /var/cache/backpass
ENV PATH=/opt/backpass/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_ARENA_MAX=2 \
    BACKPASS_HOST=0.0.0.0 \
    BACKPASS_PORT=8080 \
    BACKPASS_DATA_DIR=/var/lib/backpass
WORKDIR /var/lib/backpass
USER 10001:10001
VOLUME ["/var/lib/backpass"]
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["/opt/backpass/bin/python", "-m", "service.cli.healthcheck"]
ENTRYPOINT ["/opt/backpass/bin/backpass"]
CMD ["serve"]

# --- targets -----------------------------------------------------------------------------------------------------
FROM base AS gpu
COPY --from=gpu-builder /opt/backpass /opt/backpass
ENV BACKPASS_DEVICE=cuda \
    CUPY_CACHE_DIR=/var/cache/backpass/cupy \
    CUDA_CACHE_PATH=/var/cache/backpass/cuda \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
VOLUME ["/var/cache/backpass"]

# the last target is the default of a build without --target
FROM base AS cpu
COPY --from=builder /opt/backpass /opt/backpass
ENV BACKPASS_DEVICE=cpu
