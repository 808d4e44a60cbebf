/* libphub for C: the same library as phub/client.h, for C11 programs and for other languages.
 *
 *   phub_session* session = NULL;
 *   phub_job* job = NULL;
 *   phub_error* error = NULL;
 *   phub_connect("phub://rack7:7700", NULL, &session, &error);
 *   phub_job_options options;
 *   phub_job_options_init(&options, sizeof options);
 *   options.job = "digits";
 *   options.rank = rank;
 *   options.world_size = 4;
 *   if (phub_session_join(session, &options, &job, &error) != PHUB_OK) {
 *     fprintf(stderr, "%s\n", phub_error_message(error));
 *     phub_error_free(error);
 *   }
 *
 * phub/client.h explains terms and the rules of a round; they are the same here.
 *
 * Objects. Every object is opaque. The caller frees each one that a function returned, in any
 * order: keys, handles and queues may outlive their job, and jobs their session. Freeing NULL does
 * nothing. Freeing a job leaves it. Returned texts belong to their object unless stated otherwise.
 *
 * Structs. Callers set struct_size to sizeof the struct; the functions named *_init do so and set
 * every field to its default. A program that was compiled with an older header works with a newer
 * library, which uses defaults for the fields that the program does not know. With an older
 * library, fields that the library does not know must be zero. phub_elements and
 * phub_const_elements never change and have no struct_size.
 *
 * Errors. Functions that can fail return a phub_result. On failure they also set *error, unless
 * `error` is NULL, to an object that the caller frees; on success they set it to NULL. No function
 * throws or aborts because of its arguments or of other processes. Arguments that point to objects
 * must not be NULL unless stated otherwise; a NULL object is refused with PHUB_INVALID_ARGUMENT.
 *
 * Threads. Every function may be called from any thread. An object must not be freed while another
 * thread uses it.
 *
 * Forks. A child process of a process that called phub_connect() cannot use phub: every function
 * that can fail returns PHUB_FAILED_PRECONDITION. Freeing objects and exiting are safe there, and
 * do not disturb the parent.
 *
 * Logs. Lines go to standard error, by default from level warning on. The environment variable
 * PHUB_LOG_LEVEL (debug, info, warning, error) changes the level.
 *
 * Timelines. With the environment variable PHUB_TIMELINE=file, the process writes when each key was
 * pushed and complete, for Perfetto (docs/timeline.md).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "phub/c_types.h"
#include "phub/export.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers are those of gRPC. New values may be added. */
typedef enum phub_result {
  PHUB_OK = 0,
  PHUB_CANCELLED = 1, /* withdrawn by phub_handle_cancel(), or this rank left the job */
  PHUB_UNKNOWN = 2,
  PHUB_INVALID_ARGUMENT = 3,  /* the arguments are wrong in any state */
  PHUB_DEADLINE_EXCEEDED = 4, /* not done in time; it may still complete later */
  PHUB_NOT_FOUND = 5,
  PHUB_ALREADY_EXISTS = 6, /* a live worker holds this rank, or a key has this name */
  PHUB_PERMISSION_DENIED = 7,
  PHUB_RESOURCE_EXHAUSTED = 8,  /* a quota, or memory of the daemon or of this process */
  PHUB_FAILED_PRECONDITION = 9, /* not possible in the present state */
  PHUB_ABORTED = 10,            /* the job ended; the error names the rank that died or disagreed */
  PHUB_OUT_OF_RANGE = 11,
  PHUB_UNIMPLEMENTED = 12,
  PHUB_INTERNAL = 13,    /* a bug in phub, or a peer that violates the protocol */
  PHUB_UNAVAILABLE = 14, /* the daemon died or cannot be reached */
  PHUB_UNAUTHENTICATED = 16
} phub_result;

typedef struct phub_error phub_error;
typedef struct phub_session phub_session;
typedef struct phub_job phub_job;
typedef struct phub_key phub_key;
typedef struct phub_handle phub_handle;
typedef struct phub_queue phub_queue;

/* Version of the library, for example "0.1.0". Static storage. */
PHUB_API const char* phub_version(void);
/* "FAILED_PRECONDITION". Static storage. */
PHUB_API const char* phub_result_name(int32_t result);

/* ---- Errors -------------------------------------------------------------------------------- */

/* All functions accept NULL, which is "no error". */
PHUB_API phub_result phub_error_result(const phub_error* error);
PHUB_API const char* phub_error_message(const phub_error* error);
PHUB_API const char* phub_error_job(const phub_error* error); /* "" if no job is involved */
PHUB_API const char* phub_error_key(const phub_error* error); /* "" if no key is involved */
/* The rank that the error is about: the one that died or disagreed, if the job's verdict names
 * one; otherwise this process's rank. -1: no rank is involved. */
PHUB_API int64_t phub_error_rank(const phub_error* error);
/* This process's rank in the job, or -1. */
PHUB_API int64_t phub_error_own_rank(const phub_error* error);
PHUB_API void phub_error_free(phub_error* error);

/* ---- Logs ---------------------------------------------------------------------------------- */

enum { PHUB_LOG_DEBUG = 0, PHUB_LOG_INFO = 1, PHUB_LOG_WARNING = 2, PHUB_LOG_ERROR = 3 };

/* Lines below `level` are discarded. Overrides PHUB_LOG_LEVEL. */
PHUB_API phub_result phub_set_log_level(int32_t level, phub_error** error);
/* `line` has no line end and is valid during the call only. Called on any thread: it must return
 * soon, and must not call phub. */
typedef void (*phub_log_callback)(void* context, int32_t level, const char* line);
/* Passes lines to `callback` instead of standard error; NULL: standard error again. Returns after
 * calls of the previous callback have ended. */
PHUB_API void phub_set_log_callback(phub_log_callback callback, void* context);

/* ---- Timelines ------------------------------------------------------------------------------ */

/* 1 if PHUB_TIMELINE records a timeline of this process, otherwise 0. */
PHUB_API int32_t phub_timeline_on(void);
/* Adds to the timeline that this thread computed something in an iteration, counted from 0. Times
 * are those of CLOCK_MONOTONIC. Ignored without a timeline, if PHUB_TIMELINE_ITERATIONS does not
 * have the iteration, and if the end is before the begin. */
PHUB_API void phub_timeline_add(const char* name, uint64_t iteration, int64_t begin_ns,
                                int64_t end_ns);

/* ---- Memory -------------------------------------------------------------------------------- */

/* Names memory that this process can only read, such as shared parameters. A write to it ends the
 * process with SIGSEGV, but a line on standard error says first which memory it was. `name` is
 * copied; NULL or "": removes the names of this memory. The first name installs a handler, which
 * passes the signal on to the previous one. Any thread. */
PHUB_API phub_result phub_name_read_only(const void* data, uint64_t bytes, const char* name,
                                         phub_error** error);

/* ---- Sessions ------------------------------------------------------------------------------ */

/* Texts that are NULL mean the default. */
typedef struct phub_connect_options {
  size_t struct_size;
  const char* tenant;         /* default: that of the identity, or "default" */
  const char* token_file;     /* default: the environment variable PHUB_TOKEN_FILE */
  const char* ca_file;        /* default: PHUB_CA_FILE. This and the next three turn on TLS */
  const char* certificate;    /* default: PHUB_CERTIFICATE */
  const char* key;            /* default: PHUB_KEY */
  const char* server_name;    /* default: PHUB_SERVER_NAME */
  int32_t plaintext_token;    /* not 0: send the token to another host without TLS */
  int32_t reserved;           /* 0 */
  int64_t connect_timeout_ms; /* default: 10000 */
  int64_t call_timeout_ms;    /* default: 30000 */
} phub_connect_options;
PHUB_API void phub_connect_options_init(phub_connect_options* options, size_t struct_size);

/* endpoint: "phub://host:port" or "host:port". options: NULL for defaults. */
PHUB_API phub_result phub_connect(const char* endpoint, const phub_connect_options* options,
                                  phub_session** session, phub_error** error);
PHUB_API void phub_session_free(phub_session* session);

/* ---- Jobs ---------------------------------------------------------------------------------- */

enum { PHUB_ON_LOSS_FAIL = 0, PHUB_ON_LOSS_WAIT = 1 };
enum { PHUB_SCREENING_OFF = 0, PHUB_SCREENING_REPORT = 1, PHUB_SCREENING_REJECT = 2 };
enum {
  PHUB_TRANSPORT_AUTO = 0,
  PHUB_TRANSPORT_TCP = 1,
  PHUB_TRANSPORT_SHARED_MEMORY = 2,
  PHUB_TRANSPORT_VERBS = 3
};
enum { PHUB_APPLY_CHUNK = 0, PHUB_APPLY_ITERATION = 1 };
enum { PHUB_SUM_FLOAT = 0, PHUB_SUM_FIXED = 1 };

/* phub/job_options.h explains each field. */
typedef struct phub_job_options {
  size_t struct_size;
  const char* job; /* name of the job; required */
  uint32_t rank;
  uint32_t world_size;      /* default: 1 */
  uint32_t chunk_bytes;     /* 0: the daemon's default */
  uint32_t staging_bytes;   /* 0: the daemon's default */
  int32_t on_loss;          /* PHUB_ON_LOSS_* */
  int32_t screening;        /* PHUB_SCREENING_*; default: report */
  int32_t apply;            /* PHUB_APPLY_* */
  int32_t transport;        /* PHUB_TRANSPORT_* */
  int32_t restart;          /* not 0: a worker that died may be restarted */
  int32_t skip_nonfinite;   /* not 0: skip iterations with NaN or infinity */
  double clip_norm;         /* 0: no clipping */
  int64_t wait_timeout_ms;  /* default: 60000 */
  int64_t leave_timeout_ms; /* default: 5000 */
  const char* plan;         /* NULL or "": this rack only */
  int64_t join_timeout_ms;  /* 0: ranks may join at any time */
  int32_t sum;              /* PHUB_SUM_* */
  uint32_t sum_block;       /* PHUB_SUM_FIXED: elements of a block; 0: 350 */
} phub_job_options;
PHUB_API void phub_job_options_init(phub_job_options* options, size_t struct_size);

/* Joins a job; the first rank creates it. Does not wait for other ranks. */
PHUB_API phub_result phub_session_join(phub_session* session, const phub_job_options* options,
                                       phub_job** job, phub_error** error);
/* Waits for rounds in flight (at most leave_timeout), then leaves. Later calls are refused, except
 * phub_job_leave(), which returns the same result again. A key's parameters can still be read until
 * the key is freed: they are those of the last complete round. */
PHUB_API phub_result phub_job_leave(phub_job* job, phub_error** error);
PHUB_API void phub_job_free(phub_job* job);

PHUB_API const char* phub_job_name(const phub_job* job);
PHUB_API uint32_t phub_job_rank(const phub_job* job);
PHUB_API uint32_t phub_job_world_size(const phub_job* job);
PHUB_API int32_t phub_job_created(const phub_job* job); /* not 0: this rank created the job */
PHUB_API int32_t phub_job_resumed(const phub_job* job); /* not 0: it replaces one that died */
/* Reductions that every key completed on this rank: the next iteration to compute, from 0. */
PHUB_API uint64_t phub_job_iteration(const phub_job* job);
/* "shm", "tcp" or "shm,tcp": the transports when this rank joined. */
PHUB_API const char* phub_job_transports(const phub_job* job);
/* PHUB_OK while the job runs; afterwards its verdict. */
PHUB_API phub_result phub_job_status(const phub_job* job, phub_error** error);

/* phub/job_options.h explains each field (IterationOutcome). */
typedef struct phub_iteration_outcome {
  size_t struct_size;
  uint64_t decided;
  uint64_t skipped;
  int32_t last_skipped;
  int32_t reserved;
  double norm;
  double scale;
} phub_iteration_outcome;
/* Fills the fields that fit in outcome->struct_size. */
PHUB_API phub_result phub_job_last_iteration(const phub_job* job, phub_iteration_outcome* outcome,
                                             phub_error** error);

/* Blocks until every rank has called it as often as this rank. */
PHUB_API phub_result phub_job_barrier(phub_job* job, phub_error** error);
/* Why a barrier or phub_job_load_checkpoint() of this rank blocks, for another thread:
 * PHUB_DEADLINE_EXCEEDED, and `error` names the ranks that it waits for. PHUB_OK: for no rank. */
PHUB_API phub_result phub_job_explain_barrier(const phub_job* job, phub_error** error);
/* Checkpoints, as in phub/client.h. iteration: set to the saved iteration; may be NULL. */
PHUB_API phub_result phub_job_save_checkpoint(phub_job* job, const char* directory,
                                              uint64_t* iteration, phub_error** error);
PHUB_API phub_result phub_job_load_checkpoint(phub_job* job, const char* directory,
                                              uint64_t* iteration, phub_error** error);
/* The same for a directory that will be deleted soon (CheckpointOptions::lasts is false). */
PHUB_API phub_result phub_job_save_copy(phub_job* job, const char* directory, uint64_t* iteration,
                                        phub_error** error);
PHUB_API phub_result phub_job_load_copy(phub_job* job, const char* directory, uint64_t* iteration,
                                        phub_error** error);

/* ---- Keys ---------------------------------------------------------------------------------- */

typedef struct phub_key_spec {
  size_t struct_size;
  const char* name; /* required */
  int32_t type;     /* PHUB_F32, ...; default: PHUB_F32 */
  int32_t operation;
  uint64_t element_count;          /* may be 0 if `tensors` is given */
  const uint64_t* tensors;         /* a bundle: element counts of its tensors. NULL: one tensor */
  size_t tensor_count;             /* number of `tensors` */
  const phub_optimizer* optimizer; /* NULL: none */
  int32_t gradient_type;           /* on the wire and in memory; 0: the key's type */
  int32_t parameter_type;          /* likewise */
  int32_t has_priority;            /* 0: keys added earlier have a higher priority */
  int32_t priority;
  int32_t copy;        /* not 0: this worker may write the parameters between rounds */
  int32_t reserved;    /* 0 */
  void* gradients;     /* memory for phub_key_gradients(), valid until this rank has left */
  void* parameters;    /* likewise. NULL: phub allocates zero-filled memory */
  int32_t movement;    /* PHUB_ALL_REDUCE, ...; phub/client.h has the rules */
  uint32_t root;       /* of PHUB_SCATTER and PHUB_GATHER_TO_ONE */
  int32_t collective;  /* not 0: outside iterations and checkpoints; phub/client.h has the rules */
  int32_t reserved2;   /* 0 */
  int32_t compression; /* PHUB_COMPRESSION_*, of gradients on the wire */
  int32_t error_feedback; /* PHUB_FEEDBACK_* */
  double kept;            /* PHUB_COMPRESSION_TOPK and PHUB_COMPRESSION_RANDOMK: up to 0.5 */
  int32_t pooled;         /* not 0: rounds have types of their own; phub/client.h has the rules */
  int32_t priority_class; /* PHUB_PRIORITY_*; before `priority` */
} phub_key_spec;
PHUB_API void phub_key_spec_init(phub_key_spec* spec, size_t struct_size);

/* Adds `count` keys in one round trip and sets keys[0] to keys[count - 1]. All specs have the same
 * struct_size. Every rank makes the same calls in the same order. If it fails, no key is added. */
PHUB_API phub_result phub_job_add_keys(phub_job* job, const phub_key_spec* specs, size_t count,
                                       phub_key** keys, phub_error** error);
/* Gives back what the job holds for the keys of its last calls of phub_job_add_keys(). They are
 * collective, and every rank calls it; see Job::RemoveKeys in client.h. Free the keys as well.
 * With a count of 0 it only says whether this rank can remove keys. */
PHUB_API phub_result phub_job_remove_keys(phub_job* job, phub_key* const* keys, size_t count,
                                          phub_error** error);
PHUB_API void phub_key_free(phub_key* key);

PHUB_API const char* phub_key_name(const phub_key* key);
PHUB_API uint64_t phub_key_element_count(const phub_key* key);
PHUB_API int32_t phub_key_type(const phub_key* key);
/* Number of rounds that completed on this rank, including broadcasts. */
PHUB_API uint64_t phub_key_iteration(const phub_key* key);
/* The key's memory. It lives until the key and all its handles are freed and this rank left. It has
 * element_count elements; element_count / world_size where this rank has only one part (gradients
 * of PHUB_GATHER), and none where it has no part (gradients of PHUB_SCATTER on other ranks). */
PHUB_API phub_elements phub_key_gradients(const phub_key* key);
PHUB_API phub_const_elements phub_key_parameters(const phub_key* key);
/* The same parameters, writable between rounds; data is NULL if they are shared with others. */
PHUB_API phub_elements phub_key_mutable_parameters(const phub_key* key);
PHUB_API size_t phub_key_tensor_count(const phub_key* key);
/* Views of tensor `index` of a bundle. Either output may be NULL. */
PHUB_API phub_result phub_key_tensor(const phub_key* key, size_t index, phub_elements* gradients,
                                     phub_const_elements* parameters, phub_error** error);

/* Sets parameters on every rank to rank 0's values; blocks. values: may be NULL on other ranks. */
PHUB_API phub_result phub_job_initialize(phub_job* job, phub_key* key,
                                         const phub_const_elements* values, phub_error** error);
/* Hyper-parameters from the next push on; every rank sets the same before the same round. */
PHUB_API phub_result phub_key_set_hyper_parameters(phub_key* key, const phub_optimizer* values,
                                                   phub_error** error);

/* ---- Rounds -------------------------------------------------------------------------------- */

/* Each of these starts a round and sets *handle. If the push is refused, they return the reason,
 * and there is no handle. */
PHUB_API phub_result phub_key_push_pull(phub_key* key, phub_handle** handle, phub_error** error);
/* With the caller's memory, which phub uses until the handle is complete. parameters: NULL for the
 * key's own. The result may arrive exactly where it is sent from, in the same type; any other
 * overlap is refused. After an error the contents of the parameters are undefined. */
PHUB_API phub_result phub_key_push_pull_with(phub_key* key, const phub_const_elements* gradients,
                                             const phub_elements* parameters, phub_handle** handle,
                                             phub_error** error);
/* PHUB_APPLY_ITERATION: requests that the iteration be skipped. */
PHUB_API phub_result phub_key_push_pull_to_skip(phub_key* key, phub_handle** handle,
                                                phub_error** error);
/* Pooled keys only: a round of its own type, operation (PHUB_SUM, ...) and length; see
 * Key::AllReduce in client.h. */
PHUB_API phub_result phub_key_all_reduce(phub_key* key, const phub_const_elements* gradients,
                                         const phub_elements* parameters, int32_t operation,
                                         uint32_t sequence, phub_handle** handle,
                                         phub_error** error);
/* Another handle of the key's last push. */
PHUB_API phub_result phub_key_pull(const phub_key* key, phub_handle** handle, phub_error** error);
/* Sends every rank the values of rank `root`. values: NULL for the root's parameters; NULL or not
 * on all ranks alike. */
PHUB_API phub_result phub_job_broadcast(phub_job* job, phub_key* key, uint32_t root,
                                        const phub_const_elements* values, phub_handle** handle,
                                        phub_error** error);

/* Blocks until the round is complete. timeout_ns: negative for no limit; after it the result is
 * PHUB_DEADLINE_EXCEEDED, and the round continues. After a second or more the error is that of
 * phub_handle_explain(). */
PHUB_API phub_result phub_handle_wait(const phub_handle* handle, int64_t timeout_ns,
                                      phub_error** error);
/* The same with no time to wait. If the round is in flight, the error says for which ranks it
 * waits, and which ranks wait for each other in a cycle. Asks the daemon, for at most 2 s. */
PHUB_API phub_result phub_handle_explain(const phub_handle* handle, phub_error** error);
PHUB_API int32_t phub_handle_test(const phub_handle* handle); /* not 0: wait would not block */
/* Withdraws the push if none of it was sent. */
PHUB_API phub_result phub_handle_cancel(const phub_handle* handle, phub_error** error);
/* The round continues. */
PHUB_API void phub_handle_free(phub_handle* handle);

/* ---- Completion queues --------------------------------------------------------------------- */

/* Waits for any of many handles, of any jobs. One or several threads may wait. */
PHUB_API phub_result phub_queue_create(phub_queue** queue, phub_error** error);
/* Reports the handle's round once, with `tag`, when it is complete. The handle may be freed at
 * once. */
PHUB_API phub_result phub_queue_add(phub_queue* queue, const phub_handle* handle, uint64_t tag,
                                    phub_error** error);
/* Blocks until a round is complete, and takes it from the queue. Returns PHUB_OK and sets *tag, and
 * *result to the round's own result, for which *error is set if it is not PHUB_OK. Otherwise
 * PHUB_DEADLINE_EXCEEDED (timeout_ns: negative for no limit), or PHUB_CANCELLED after
 * phub_queue_close(). */
PHUB_API phub_result phub_queue_wait(phub_queue* queue, int64_t timeout_ns, uint64_t* tag,
                                     phub_result* result, phub_error** error);
/* Wakes all threads that wait; no round is reported any more. */
PHUB_API void phub_queue_close(phub_queue* queue);
/* Closes and frees it. REQUIRES: no thread waits. */
PHUB_API void phub_queue_free(phub_queue* queue);

#ifdef __cplusplus
}
#endif

#include "phub/c_groups.h"
