# SPDX-License-Identifier: Apache-2.0
"""Reads proto/messages.toml and writes what the build makes of it."""
