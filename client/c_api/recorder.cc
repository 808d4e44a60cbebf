// phub_job_set_recorder and phub_record_*.
#include "phub/recorder.h"

#include <string>
#include <utility>

#include "client/c_api/structs.h"

struct phub_record {
  phub::DumpRecord record;
};

namespace phub::c_api {
namespace {

void CopyText(const char* text, std::string& place) noexcept {
  try {
    place = text == nullptr ? "" : text;
  } catch (const std::bad_alloc&) {  // the record has a text less
  }
}

}  // namespace
}  // namespace phub::c_api

void phub_record_set_headline(phub_record* record, const char* headline) {
  if (record != nullptr) phub::c_api::CopyText(headline, record->record.headline);
}
void phub_record_set_text(phub_record* record, const char* text) {
  if (record != nullptr) phub::c_api::CopyText(text, record->record.text);
}
void phub_record_set_json(phub_record* record, const char* json) {
  if (record != nullptr) phub::c_api::CopyText(json, record->record.json);
}

phub_result phub_job_set_recorder(phub_job* job, phub_recorder recorder, void* context,
                                  phub_error** error) {
  return phub::c_api::Run(job, error, [&] {
    if (job == nullptr) return phub::c_api::NullArgument("phub_job_set_recorder", "job");
    if (recorder == nullptr) return job->job.SetRecorder(nullptr);
    return job->job.SetRecorder([recorder, context](std::size_t bytes_max) {
      phub_record record;
      recorder(context, &record, bytes_max);
      return std::move(record.record);
    });
  });
}
