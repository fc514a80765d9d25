# What stands in for valkey's image where no registry is reached: this machine's server, and Debian's redis-cli under the
# name that health checks call. Made by images.test.ts.
ARG BASE
FROM ${BASE}
COPY valkey-server /usr/local/bin/
COPY redis-cli /usr/local/bin/valkey-cli
COPY libraries/ /usr/lib/x86_64-linux-gnu/
RUN install -d -o 999 -g 999 /data
VOLUME /data
