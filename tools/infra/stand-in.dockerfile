# What stands in for node:22-bookworm-slim where no registry is reached: Debian by debootstrap, the Node that tests run on,
# the machine's npm. Made by images.test.ts.
FROM scratch
ADD rootfs.tar /
COPY node /usr/local/bin/node
COPY npm /usr/local/lib/node_modules/npm
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm
