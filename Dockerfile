FROM python:3.12-slim

# Where pip finds torch's builds for the CPU alone, if the image is to have one of these.
ARG PIP_EXTRA_INDEX_URL=

WORKDIR /paceline
# torch has a layer of its own: it is large, and changes with constraints.txt only.
COPY constraints.txt ./
RUN pip install --no-cache-dir -c constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --no-cache-dir -c constraints.txt '.[all]'

# Jobs need no root. A volume that is mounted at either folder first takes the folder's owner over.
RUN useradd --create-home --uid 1000 paceline \
    && install -d -o paceline -g paceline -m 700 /home/paceline/.paceline \
    && install -d -o paceline -g paceline /work
USER paceline
WORKDIR /work
ENTRYPOINT ["paceline"]
