/* Pools and groups for C: a part of phub/phub.h, which includes this header. */
#pragma once

#include "phub/phub.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct phub_group phub_group;
typedef struct phub_pool phub_pool;

/* ---- Pools --------------------------------------------------------------------------------- */

/* All-reduces and broadcasts of any type and length; phub/pool.h has the rules. */
typedef struct phub_pool_options {
  size_t struct_size;
  const char* name;        /* required; the keys are name/0 to name/<depth - 1> */
  uint64_t capacity_bytes; /* of one round; default: 4 MiB */
  uint32_t depth;          /* rounds in flight; default: 4 */
  int32_t priority_class;  /* PHUB_PRIORITY_* */
  int64_t timeout_ms;      /* how long an operation may wait for a free round; 0: no limit;
                              default: 30 min; see phub::Pool::AllReduce() in phub/pool.h */
} phub_pool_options;
PHUB_API void phub_pool_options_init(phub_pool_options* options, size_t struct_size);
/* Every rank makes the same calls of this and of phub_job_add_keys() in the same order. */
PHUB_API phub_result phub_job_add_pool(phub_job* job, const phub_pool_options* options,
                                       phub_pool** pool, phub_error** error);
/* Like phub_job_remove_keys(). Free the pool as well. */
PHUB_API phub_result phub_job_remove_pool(phub_job* job, phub_pool* pool, phub_error** error);
PHUB_API void phub_pool_free(phub_pool* pool);
/* Starts an operation and sets *handle, which cannot be cancelled. operation: PHUB_SUM, ...; 0: the
 * sum. Blocks while the round whose turn it is waits for an earlier one, at most timeout_ms: then
 * PHUB_DEADLINE_EXCEEDED. */
PHUB_API phub_result phub_pool_all_reduce(phub_pool* pool, const phub_const_elements* values,
                                          const phub_elements* results, int32_t operation,
                                          phub_handle** handle, phub_error** error);
/* Copies rank root's values to those of all other ranks; phub/pool.h has the rules. */
PHUB_API phub_result phub_pool_broadcast(phub_pool* pool, const phub_elements* values,
                                         uint32_t root, phub_handle** handle, phub_error** error);
/* A broadcast as one round of a pooled key; see phub::Broadcast in phub/pool.h. */
PHUB_API phub_result phub_key_broadcast(phub_key* key, const phub_elements* values, uint32_t root,
                                        uint32_t sequence, phub_handle** handle,
                                        phub_error** error);
PHUB_API int32_t phub_key_can_broadcast(const phub_key* key);
/* Not 0: an operation with these values would block; NULL: one round. */
PHUB_API int32_t phub_pool_would_wait(const phub_pool* pool, const phub_const_elements* values);

/* ---- Groups -------------------------------------------------------------------------------- */

/* Ranks of a job that exchange keys of their own; phub/group.h has the rules. The functions of one
 * group are called by one thread at a time. */

/* ranks: the members' ranks in the job, in any order; this rank must be one of them. Calls no
 * daemon: only members call it, and they meet when they add the first keys. */
PHUB_API phub_result phub_job_new_group(phub_job* job, const char* name, const uint32_t* ranks,
                                        size_t count, phub_group** group, phub_error** error);
typedef struct phub_group_options {
  size_t struct_size;
  int32_t priority_class; /* PHUB_PRIORITY_*, of keys and pools that state none */
  int32_t reserved;       /* 0 */
} phub_group_options;
PHUB_API void phub_group_options_init(phub_group_options* options, size_t struct_size);
/* Like phub_job_new_group(). options: NULL for the defaults. */
PHUB_API phub_result phub_job_new_group_with(phub_job* job, const char* name, const uint32_t* ranks,
                                             size_t count, const phub_group_options* options,
                                             phub_group** group, phub_error** error);
typedef struct phub_group_spec {
  size_t struct_size;
  const char* name;
  const uint32_t* ranks; /* in any order */
  size_t count;
  int32_t priority_class; /* PHUB_PRIORITY_*, of keys and pools that state none */
  int32_t reserved;       /* 0 */
} phub_group_spec;
PHUB_API void phub_group_spec_init(phub_group_spec* spec, size_t struct_size);
/* Several groups at once, so that plans for those of several racks are made together: declare
 * groups that are used at the same time with one call, at most 64. Every member of any of them
 * gives the same specs; other ranks need not call. groups: room for `count`; NULL where this rank
 * is not a member. */
PHUB_API phub_result phub_job_new_groups(phub_job* job, const phub_group_spec* specs, size_t count,
                                         phub_group** groups, phub_error** error);
/* A group can be freed before its keys and pools. Freeing it does not remove it from the job. */
PHUB_API void phub_group_free(phub_group* group);

PHUB_API const char* phub_group_name(const phub_group* group);
PHUB_API size_t phub_group_size(const phub_group* group);           /* number of members */
PHUB_API const uint32_t* phub_group_ranks(const phub_group* group); /* ascending */
PHUB_API uint32_t phub_group_index(const phub_group* group); /* this rank's place in the ranks */

/* Like phub_job_add_keys(), for the members, which make the same calls in the same order. Keys are
 * collective. The parts of a movement are those of members. `root` is a rank of the job, also of
 * phub_job_broadcast(). */
PHUB_API phub_result phub_group_add_keys(phub_group* group, const phub_key_spec* specs,
                                         size_t count, phub_key** keys, phub_error** error);
/* Like phub_job_add_pool(). phub_job_remove_pool() refuses the pool: it is removed with its group.
 */
PHUB_API phub_result phub_group_add_pool(phub_group* group, const phub_pool_options* options,
                                         phub_pool** pool, phub_error** error);
/* Gives back what the job holds for the group, with its keys and pools, which must have no round in
 * flight. Blocks until every member has called it. Free the group, keys and pools as well. */
PHUB_API phub_result phub_group_remove(phub_group* group, phub_error** error);

#ifdef __cplusplus
}
#endif
