#!/usr/bin/env bash
# Install Java for Spark by the system's own packages, unless it is there.
set -euo pipefail
command -v java >/dev/null && exit 0
if command -v apt-get >/dev/null; then
  apt-get update -qq && apt-get install -y -qq default-jre-headless
elif command -v dnf >/dev/null; then
  dnf install -y -q java-17-openjdk-headless
elif command -v apk >/dev/null; then
  apk add --quiet openjdk17-jre-headless
elif command -v brew >/dev/null; then
  brew install --quiet openjdk@17
fi || true
command -v java >/dev/null || { echo 'Tables of Spark need Java 17 or later, and it could not be installed here.' >&2; exit 1; }
