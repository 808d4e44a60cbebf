"""libphub and the declarations of phub/phub.h, c_types.h, c_groups.h and recorder.h."""

from __future__ import annotations

import ctypes
import os
import pathlib
from typing import Any

_VARIABLE = "PHUB_LIBRARY"
_NAME = "libphub.so.0"


class ConnectOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("tenant", ctypes.c_char_p),
        ("token_file", ctypes.c_char_p),
        ("ca_file", ctypes.c_char_p),
        ("certificate", ctypes.c_char_p),
        ("key", ctypes.c_char_p),
        ("server_name", ctypes.c_char_p),
        ("plaintext_token", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("connect_timeout_ms", ctypes.c_int64),
        ("call_timeout_ms", ctypes.c_int64),
    ]


class JobOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("job", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("world_size", ctypes.c_uint32),
        ("chunk_bytes", ctypes.c_uint32),
        ("staging_bytes", ctypes.c_uint32),
        ("on_loss", ctypes.c_int32),
        ("screening", ctypes.c_int32),
        ("apply", ctypes.c_int32),
        ("transport", ctypes.c_int32),
        ("restart", ctypes.c_int32),
        ("skip_nonfinite", ctypes.c_int32),
        ("clip_norm", ctypes.c_double),
        ("wait_timeout_ms", ctypes.c_int64),
        ("leave_timeout_ms", ctypes.c_int64),
        ("plan", ctypes.c_char_p),
        ("join_timeout_ms", ctypes.c_int64),
        ("sum", ctypes.c_int32),
        ("sum_block", ctypes.c_uint32),
    ]


class IterationOutcome(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("decided", ctypes.c_uint64),
        ("skipped", ctypes.c_uint64),
        ("last_skipped", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("norm", ctypes.c_double),
        ("scale", ctypes.c_double),
    ]


class Elements(ctypes.Structure):
    """phub_elements and phub_const_elements, which have the same layout."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("type", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class Optimizer(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("kind", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("learning_rate", ctypes.c_double),
        ("weight_decay", ctypes.c_double),
        ("clip_value", ctypes.c_double),
        ("momentum", ctypes.c_double),
        ("dampening", ctypes.c_double),
        ("beta1", ctypes.c_double),
        ("beta2", ctypes.c_double),
        ("epsilon", ctypes.c_double),
        ("learning_rate_decay", ctypes.c_double),
        ("initial_accumulator", ctypes.c_double),
        ("alpha", ctypes.c_double),
    ]


class KeySpec(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int32),
        ("operation", ctypes.c_int32),
        ("element_count", ctypes.c_uint64),
        ("tensors", ctypes.POINTER(ctypes.c_uint64)),
        ("tensor_count", ctypes.c_size_t),
        ("optimizer", ctypes.POINTER(Optimizer)),
        ("gradient_type", ctypes.c_int32),
        ("parameter_type", ctypes.c_int32),
        ("has_priority", ctypes.c_int32),
        ("priority", ctypes.c_int32),
        ("copy", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("gradients", ctypes.c_void_p),
        ("parameters", ctypes.c_void_p),
        ("movement", ctypes.c_int32),
        ("root", ctypes.c_uint32),
        ("collective", ctypes.c_int32),
        ("reserved2", ctypes.c_int32),
        ("compression", ctypes.c_int32),
        ("error_feedback", ctypes.c_int32),
        ("kept", ctypes.c_double),
        ("pooled", ctypes.c_int32),
        ("priority_class", ctypes.c_int32),
    ]


class PoolOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("capacity_bytes", ctypes.c_uint64),
        ("depth", ctypes.c_uint32),
        ("priority_class", ctypes.c_int32),
        ("timeout_ms", ctypes.c_int64),
    ]


class GroupOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("priority_class", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


class GroupSpec(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("ranks", ctypes.POINTER(ctypes.c_uint32)),
        ("count", ctypes.c_size_t),
        ("priority_class", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


# void (*phub_recorder)(void* context, phub_record* record, size_t bytes_max)
RECORDER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_char_p)

_OBJECT = ctypes.c_void_p
_OUT = ctypes.POINTER(ctypes.c_void_p)
_ERROR = _OUT
_VIEW = ctypes.POINTER(Elements)
_COUNT_OUT = ctypes.POINTER(ctypes.c_uint64)
_TEXT = ctypes.c_char_p
_RESULT = ctypes.c_int

# name: (result, arguments)
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "phub_version": (_TEXT, []),
    "phub_error_message": (_TEXT, [_OBJECT]),
    "phub_error_job": (_TEXT, [_OBJECT]),
    "phub_error_key": (_TEXT, [_OBJECT]),
    "phub_error_rank": (ctypes.c_int64, [_OBJECT]),
    "phub_error_own_rank": (ctypes.c_int64, [_OBJECT]),
    "phub_error_free": (None, [_OBJECT]),
    "phub_set_log_level": (_RESULT, [ctypes.c_int32, _ERROR]),
    "phub_name_read_only": (
        _RESULT,
        [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_char_p, _ERROR],
    ),
    "phub_set_log_callback": (None, [LOG_CALLBACK, ctypes.c_void_p]),
    "phub_timeline_on": (ctypes.c_int32, []),
    "phub_timeline_add": (
        None,
        [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64],
    ),
    "phub_connect_options_init": (None, [ctypes.POINTER(ConnectOptions), ctypes.c_size_t]),
    "phub_connect": (_RESULT, [_TEXT, ctypes.POINTER(ConnectOptions), _OUT, _ERROR]),
    "phub_session_free": (None, [_OBJECT]),
    "phub_job_options_init": (None, [ctypes.POINTER(JobOptions), ctypes.c_size_t]),
    "phub_session_join": (_RESULT, [_OBJECT, ctypes.POINTER(JobOptions), _OUT, _ERROR]),
    "phub_job_leave": (_RESULT, [_OBJECT, _ERROR]),
    "phub_job_free": (None, [_OBJECT]),
    "phub_job_created": (ctypes.c_int32, [_OBJECT]),
    "phub_job_resumed": (ctypes.c_int32, [_OBJECT]),
    "phub_job_iteration": (ctypes.c_uint64, [_OBJECT]),
    "phub_job_transports": (_TEXT, [_OBJECT]),
    "phub_job_status": (_RESULT, [_OBJECT, _ERROR]),
    "phub_job_last_iteration": (_RESULT, [_OBJECT, ctypes.POINTER(IterationOutcome), _ERROR]),
    "phub_job_barrier": (_RESULT, [_OBJECT, _ERROR]),
    "phub_job_explain_barrier": (_RESULT, [_OBJECT, _ERROR]),
    "phub_record_set_headline": (None, [_OBJECT, _TEXT]),
    "phub_record_set_text": (None, [_OBJECT, _TEXT]),
    "phub_record_set_json": (None, [_OBJECT, _TEXT]),
    "phub_job_set_recorder": (_RESULT, [_OBJECT, RECORDER, ctypes.c_void_p, _ERROR]),
    "phub_job_save_checkpoint": (_RESULT, [_OBJECT, _TEXT, _COUNT_OUT, _ERROR]),
    "phub_job_load_checkpoint": (_RESULT, [_OBJECT, _TEXT, _COUNT_OUT, _ERROR]),
    "phub_job_save_copy": (_RESULT, [_OBJECT, _TEXT, _COUNT_OUT, _ERROR]),
    "phub_job_load_copy": (_RESULT, [_OBJECT, _TEXT, _COUNT_OUT, _ERROR]),
    "phub_optimizer_init": (
        None,
        [ctypes.POINTER(Optimizer), ctypes.c_size_t, ctypes.c_int32],
    ),
    "phub_key_spec_init": (None, [ctypes.POINTER(KeySpec), ctypes.c_size_t]),
    "phub_job_add_keys": (
        _RESULT,
        [_OBJECT, ctypes.POINTER(KeySpec), ctypes.c_size_t, _OUT, _ERROR],
    ),
    "phub_job_remove_keys": (_RESULT, [_OBJECT, _OUT, ctypes.c_size_t, _ERROR]),
    "phub_key_free": (None, [_OBJECT]),
    "phub_key_iteration": (ctypes.c_uint64, [_OBJECT]),
    "phub_key_gradients": (Elements, [_OBJECT]),
    "phub_key_parameters": (Elements, [_OBJECT]),
    "phub_key_mutable_parameters": (Elements, [_OBJECT]),
    "phub_job_initialize": (_RESULT, [_OBJECT, _OBJECT, _VIEW, _ERROR]),
    "phub_key_set_hyper_parameters": (_RESULT, [_OBJECT, ctypes.POINTER(Optimizer), _ERROR]),
    "phub_key_push_pull": (_RESULT, [_OBJECT, _OUT, _ERROR]),
    "phub_key_push_pull_with": (_RESULT, [_OBJECT, _VIEW, _VIEW, _OUT, _ERROR]),
    "phub_key_push_pull_to_skip": (_RESULT, [_OBJECT, _OUT, _ERROR]),
    "phub_key_all_reduce": (
        _RESULT,
        [_OBJECT, _VIEW, _VIEW, ctypes.c_int32, ctypes.c_uint32, _OUT, _ERROR],
    ),
    "phub_key_pull": (_RESULT, [_OBJECT, _OUT, _ERROR]),
    "phub_job_broadcast": (_RESULT, [_OBJECT, _OBJECT, ctypes.c_uint32, _VIEW, _OUT, _ERROR]),
    "phub_handle_wait": (_RESULT, [_OBJECT, ctypes.c_int64, _ERROR]),
    "phub_handle_explain": (_RESULT, [_OBJECT, _ERROR]),
    "phub_handle_test": (ctypes.c_int32, [_OBJECT]),
    "phub_handle_cancel": (_RESULT, [_OBJECT, _ERROR]),
    "phub_handle_free": (None, [_OBJECT]),
    "phub_pool_options_init": (None, [ctypes.POINTER(PoolOptions), ctypes.c_size_t]),
    "phub_job_add_pool": (_RESULT, [_OBJECT, ctypes.POINTER(PoolOptions), _OUT, _ERROR]),
    "phub_job_remove_pool": (_RESULT, [_OBJECT, _OBJECT, _ERROR]),
    "phub_pool_free": (None, [_OBJECT]),
    "phub_pool_all_reduce": (
        _RESULT,
        [_OBJECT, _VIEW, _VIEW, ctypes.c_int32, _OUT, _ERROR],
    ),
    "phub_key_broadcast": (
        _RESULT,
        [_OBJECT, _VIEW, ctypes.c_uint32, ctypes.c_uint32, _OUT, _ERROR],
    ),
    "phub_key_can_broadcast": (ctypes.c_int32, [_OBJECT]),
    "phub_pool_broadcast": (_RESULT, [_OBJECT, _VIEW, ctypes.c_uint32, _OUT, _ERROR]),
    "phub_pool_would_wait": (ctypes.c_int32, [_OBJECT, _VIEW]),
    "phub_group_options_init": (None, [ctypes.POINTER(GroupOptions), ctypes.c_size_t]),
    "phub_job_new_group_with": (
        _RESULT,
        [
            _OBJECT,
            _TEXT,
            ctypes.POINTER(ctypes.c_uint32),
            ctypes.c_size_t,
            ctypes.POINTER(GroupOptions),
            _OUT,
            _ERROR,
        ],
    ),
    "phub_group_spec_init": (None, [ctypes.POINTER(GroupSpec), ctypes.c_size_t]),
    "phub_job_new_groups": (
        _RESULT,
        [
            _OBJECT,
            ctypes.POINTER(GroupSpec),
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.c_void_p),
            _ERROR,
        ],
    ),
    "phub_group_free": (None, [_OBJECT]),
    "phub_group_size": (ctypes.c_size_t, [_OBJECT]),
    "phub_group_ranks": (ctypes.POINTER(ctypes.c_uint32), [_OBJECT]),
    "phub_group_index": (ctypes.c_uint32, [_OBJECT]),
    "phub_group_add_keys": (
        _RESULT,
        [_OBJECT, ctypes.POINTER(KeySpec), ctypes.c_size_t, _OUT, _ERROR],
    ),
    "phub_group_add_pool": (_RESULT, [_OBJECT, ctypes.POINTER(PoolOptions), _OUT, _ERROR]),
    "phub_group_remove": (_RESULT, [_OBJECT, _ERROR]),
    "phub_queue_create": (_RESULT, [_OUT, _ERROR]),
    "phub_queue_add": (_RESULT, [_OBJECT, _OBJECT, ctypes.c_uint64, _ERROR]),
    "phub_queue_wait": (
        _RESULT,
        [_OBJECT, ctypes.c_int64, _COUNT_OUT, ctypes.POINTER(ctypes.c_int), _ERROR],
    ),
    "phub_queue_close": (None, [_OBJECT]),
    "phub_queue_free": (None, [_OBJECT]),
}


def _candidates() -> list[str]:
    chosen = os.environ.get(_VARIABLE)
    if chosen:
        return [chosen]
    inside = pathlib.Path(__file__).parent / "lib" / _NAME
    return [str(inside)] if inside.exists() else [_NAME]


def _load() -> ctypes.CDLL:
    (path,) = _candidates()
    try:
        # RTLD_LOCAL: the symbols of libphub's own libraries stay invisible to other modules.
        library = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        raise ImportError(
            f"phub: cannot load {path}: {error}. Install the package phub-client or the wheel, "
            f"or set {_VARIABLE} to the path of {_NAME}"
        ) from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


lib: Any = _load()


def version() -> str:
    """The version of libphub, for example "0.1.0"."""
    text: bytes = lib.phub_version()
    return text.decode()
