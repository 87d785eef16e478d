# What the machines are made of, in one place. Sourced by the scripts here.
# shellcheck shell=bash disable=SC2034  # used by those who source it
kubernetes_minor=1.34
kubernetes=1.34.1
kubernetes_package=1.34.1-1.1
