# syntax=docker/dockerfile:1
#
#   docker build --target cpu -t backpass:cpu .
#   docker build --target gpu -t backpass:gpu .       CUDA libraries come from wheels, the driver from the host
#
# `make image` and docker-compose.yml pass the base image by digest, from requirements/base-image.txt. The tag below is
# for builders that have no registry. SBOM of the image: /opt/backpass/sbom.cdx.json.

ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# --- the documentation site, static pages that the service serves at /guide; only its pages leave this stage ------
FROM ${PYTHON_IMAGE} AS guide
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY requirements/docs.txt requirements/
RUN pip install --quiet --no-compile --require-hashes -r requirements/docs.txt
COPY mkdocs.yml README.md ./
COPY openapi openapi
COPY service/problems/types.py service/problems/types.py
COPY backpass_client backpass_client
COPY examples examples
COPY bench bench
COPY tests tests
COPY docs docs
RUN NO_MKDOCS_2_WARNING=1 mkdocs build --quiet --strict

# --- the environment, without pip: the builder's pip installs into it ---------------------------------------------
FROM ${PYTHON_IMAGE} AS builder
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
RUN python -m venv --without-pip /opt/backpass
COPY requirements/build.txt requirements/image.txt requirements/sbom.txt requirements/
RUN pip --python /opt/backpass/bin/python install --quiet --no-compile --require-hashes \
        -r requirements/build.txt -r requirements/image.txt \
 && python -m venv /opt/sbom \
 && /opt/sbom/bin/pip install --quiet --no-compile --require-hashes -r requirements/sbom.txt
COPY pyproject.toml README.md LICENSE ./
COPY core core
COPY service service
COPY --from=guide /src/service/static/guide service/static/guide
RUN pip --python /opt/backpass/bin/python install --quiet --no-compile --no-deps --no-build-isolation . \
 && pip --python /opt/backpass/bin/python uninstall --quiet --yes setuptools \
 && /opt/backpass/bin/python -m compileall -q /opt/backpass/lib \
 && /opt/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
        --output-file /opt/backpass/sbom.cdx.json /opt/backpass/bin/python

FROM builder AS gpu-builder
COPY requirements/gpu.txt requirements/
RUN pip --python /opt/backpass/bin/python install --quiet --no-compile --require-hashes -r requirements/gpu.txt \
 && /opt/backpass/bin/python -m compileall -q /opt/backpass/lib \
 && /opt/sbom/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
        --output-file /opt/backpass/sbom.cdx.json /opt/backpass/bin/python

# --- the common part of both images: a user, directories for volumes, the start command ---------------------------
FROM ${PYTHON_IMAGE} AS base
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Backpass" \
      org.opencontainers.image.description="A REST microservice that compiles and executes backward passes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# The programs that install software leave as well: the service needs none, and an intruder would.
RUN groupadd --gid 10001 backpass \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/backpass --shell /usr/sbin/nologin backpass \
 && install -d -o 10001 -g 10001 -m 0750 /var/lib/backpass /var/cache/backpass /var/lib/objects \
 && rm -rf /usr/local/lib/python3*/site-packages/pip* /usr/local/lib/python3*/ensurepip /usr/local/bin/pip* \
        /usr/lib/python3/dist-packages/pip* /usr/lib/python3*/ensurepip /usr/bin/pip* /usr/share/python-wheels
ENV PATH=/opt/backpass/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    MALLOC_ARENA_MAX=2 \
    BACKPASS_HOST=0.0.0.0 \
    BACKPASS_PORT=8080 \
    BACKPASS_METRICS_HOST=0.0.0.0 \
    BACKPASS_DATA_DIR=/var/lib/backpass
WORKDIR /var/lib/backpass
USER 10001:10001
VOLUME ["/var/lib/backpass"]
EXPOSE 8080 9090
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
