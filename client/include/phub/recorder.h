/* What a program adds to the record of its rank when an administrator runs `phubctl job dump`. For
 * C and other languages, like phub/phub.h. */
#pragma once

#include "phub/phub.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Exists during a call of a recorder. Each setter copies its text, which is UTF-8. */
typedef struct phub_record phub_record;
/* One line, what the program does: "waits in operation 7, all_reduce". */
PHUB_API void phub_record_set_headline(phub_record* record, const char* headline);
/* Lines for people, the most important first; cut if too long. */
PHUB_API void phub_record_set_text(phub_record* record, const char* text);
/* For programs; left out if too long. */
PHUB_API void phub_record_set_json(phub_record* record, const char* json);

/* bytes_max: text and JSON together should not be longer.
 *
 * Called on a thread of phub's own, one call at a time for each job, also while other threads wait
 * in phub. If it blocks, only its own part of the record is missing. It must not wait for this job,
 * and must not call phub_job_set_recorder(), phub_job_leave() or phub_job_free(). */
typedef void (*phub_recorder)(void* context, phub_record* record, size_t bytes_max);
/* NULL: no recorder. Returns after a call of the previous recorder has ended, as phub_job_leave()
 * and phub_job_free() do: afterwards the recorder is not called any more. */
PHUB_API phub_result phub_job_set_recorder(phub_job* job, phub_recorder recorder, void* context,
                                           phub_error** error);

#ifdef __cplusplus
}
#endif
