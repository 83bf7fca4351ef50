"""One server on a toy pair and the real engine, for all tests of this folder that do not need their own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import openai
import pytest
from http_server import HttpServer, http_server
from local_pair import local_backend


@pytest.fixture(scope="package")
def server() -> Iterator[HttpServer]:
    with http_server(local_backend) as running:
        yield running


@pytest.fixture
def client(server: HttpServer) -> Iterator[openai.OpenAI]:
    with server.client() as made:
        yield made


@pytest.fixture
def http(server: HttpServer) -> Iterator[httpx.Client]:
    with server.http() as made:
        yield made
