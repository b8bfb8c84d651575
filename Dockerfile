# syntax=docker/dockerfile:1
# The server of stillhash. docs/deployment.md says how to run it.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
COPY deploy/build-packages.sh deploy/build-wheel.sh deploy/install-server.sh /deploy/
RUN /deploy/build-packages.sh
COPY pyproject.toml CMakeLists.txt README.md LICENSE /source/
COPY src /source/src
ARG VERSION=0.2.0
RUN /deploy/build-wheel.sh /source /wheels "$VERSION" \
 && /deploy/install-server.sh /wheels /opt/stillhash
COPY deploy/entrypoint.sh deploy/healthcheck.py /opt/stillhash/deploy/

FROM python:${PYTHON}-slim
ARG VERSION=0.2.0
LABEL org.opencontainers.image.title="stillhash" \
      org.opencontainers.image.description="Vector search: fixed binary codes, learned similarity" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.url="https://github.com/stillhash/stillhash" \
      org.opencontainers.image.source="https://github.com/stillhash/stillhash" \
      org.opencontainers.image.documentation="https://stillhash.github.io/stillhash"
COPY --from=build /opt/stillhash /opt/stillhash
RUN /opt/stillhash/deploy/entrypoint.sh --prepare /data 10001
ENV PATH=/opt/stillhash/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 CMD ["python", "/opt/stillhash/deploy/healthcheck.py"]
ENTRYPOINT ["/opt/stillhash/deploy/entrypoint.sh"]
CMD ["serve", "--host", "0.0.0.0", "--collections-folder", "/data/collections", "--snapshots", "/data/snapshots", "--log", "json"]
