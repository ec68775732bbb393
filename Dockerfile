# The page on a dedicated GPU, as a Docker Space or anywhere:
#   docker build -t dart-arena . && docker run --gpus all -p 7860:7860 dart-arena
# The models are fetched at the first start; -v dart-arena:/home/user/.cache keeps them.
FROM python:3.12-slim AS extension
RUN apt-get update && apt-get install -y --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir "cmake>=3.20" "ninja>=1.10" "pybind11>=2.13"
COPY cpp /cpp
RUN cmake -S /cpp -B /build -G Ninja -DCMAKE_BUILD_TYPE=Release \
      -DPython_EXECUTABLE="$(command -v python)" -Dpybind11_DIR="$(python -m pybind11 --cmakedir)" \
    && cmake --build /build \
    && cmake --install /build --prefix /extension

FROM python:3.12-slim
# Spaces run containers as user 1000.
RUN useradd --create-home --uid 1000 user
USER user
ENV HOME=/home/user \
    PATH=/home/user/.local/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    GRADIO_SERVER_NAME=0.0.0.0 \
    GRADIO_SERVER_PORT=7860
WORKDIR /home/user/app
COPY --chown=user requirements.txt ./
RUN pip install --no-cache-dir --user -r requirements.txt
COPY --chown=user app ./app
COPY --chown=user assets ./assets
COPY --chown=user dart_core ./dart_core
COPY --chown=user launch/space.py ./launch/
COPY --chown=user LICENSE NOTICE README.md ./
COPY --from=extension --chown=user /extension/dart_core/ ./dart_core/
# A named volume takes its owner from here.
RUN mkdir -p /home/user/.cache
EXPOSE 7860
HEALTHCHECK --interval=30s --start-period=30m \
  CMD ["python", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['GRADIO_SERVER_PORT'] + '/healthz')"]
CMD ["python", "launch/space.py"]
