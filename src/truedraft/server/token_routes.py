"""POST /tokenize and /detokenize, in vLLM's shapes."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from truedraft.errors import RequestError
from truedraft.server import ignored_fields
from truedraft.server.body import read_json
from truedraft.server.messages import template_messages, template_tools
from truedraft.server.openapi import body_schema
from truedraft.server.schema_tokens import DetokenizeBody, TokenizeBody
from truedraft.server.state import ServerState, state_of
from truedraft.server.validation import parse_body

router = APIRouter()


@router.post("/tokenize", openapi_extra=body_schema(TokenizeBody), summary="Text to token ids")
async def tokenize(request: Request) -> Response:
    """Token ids of a text, or of a conversation after the chat template."""
    state = state_of(request)
    raw = await read_json(request, max_body_bytes=state.config.max_body_bytes)
    body = parse_body(TokenizeBody, raw, ignored_fields.TOKENS)
    state.check_model(body.model)
    ids = _ids(state, body)
    strings = [state.token_text(token_id) for token_id in ids] if body.return_token_strs else None
    return JSONResponse(
        {
            "count": len(ids),
            "max_model_len": state.backend.info.max_model_len,
            "tokens": list(ids),
            "token_strs": strings,
        }
    )


@router.post("/detokenize", openapi_extra=body_schema(DetokenizeBody), summary="Token ids to text")
async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    state = state_of(request)
    raw = await read_json(request, max_body_bytes=state.config.max_body_bytes)
    body = parse_body(DetokenizeBody, raw, ignored_fields.TOKENS)
    state.check_model(body.model)
    vocab_size = state.backend.info.vocab_size
    bad = next((token_id for token_id in body.tokens if not 0 <= token_id < vocab_size), None)
    if bad is not None:
        raise RequestError(
            "`tokens` has an id outside the vocabulary",
            param="tokens",
            seen=bad,
            allowed=f"0 to {vocab_size - 1}",
        )
    return JSONResponse({"prompt": state.backend.decode(body.tokens, skip_special_tokens=False)})


def _ids(state: ServerState, body: TokenizeBody) -> tuple[int, ...]:
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Send `prompt` or `messages`, and not both", param="prompt")
    if body.prompt is not None:
        specials = True if body.add_special_tokens is None else body.add_special_tokens
        return state.backend.encode(body.prompt, add_special_tokens=specials)
    continues = bool(body.continue_final_message)
    adds_prompt = body.add_generation_prompt
    return state.backend.encode_chat(
        template_messages(body.messages or []),
        tools=template_tools(body.tools),
        add_generation_prompt=not continues if adds_prompt is None else adds_prompt,
        continue_final_message=continues,
        template_kwargs=body.chat_template_kwargs,
    )
