// runner/detector's headers as C functions, which tests call from threads of their own.
#include "windows.h"

using racewatch::Record;
using racewatch::Windows;

extern "C" {

// Null where no record could be begun.
Record *probe_record() { return Record::Begin(); }
void probe_refuse(Record *record, const char *reason) { record->Refuse(reason); }

Windows *probe_windows(Record *record) {
  record->Watch();
  return new Windows(record);
}
void probe_opening(Windows *windows, const void *stream) { windows->Opening(stream); }
void probe_opened(Windows *windows, const void *stream, int succeeded) {
  windows->Opened(stream, succeeded != 0);
}
void probe_closed(Windows *windows, const void *stream) { windows->Closed(stream); }
void probe_node(Windows *windows, const char *api) { windows->NodeMade(api); }

void probe_refused(Windows *windows, const char *api) { windows->Refused(api); }

}  // extern "C"
