FROM python:3.12-slim
WORKDIR /paceline
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir .
WORKDIR /work
ENTRYPOINT ["paceline"]
