// The parts of libjpeg-turbo that jpeg.cc uses: errors by longjmp, and a source of bytes in memory.
#ifndef JAXKERN_IMAGE_JPEG_LIBRARY_H_
#define JAXKERN_IMAGE_JPEG_LIBRARY_H_

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <iterator>

// The codes of jerror.h depend on the version in jpeglib.h.
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on

namespace jaxkern::image {

// Limit on scans, because a small file can request any number of passes over the whole image.
constexpr int kMaxScans = 500;
// The error manager. Errors return by longjmp, so no skipped frame may own an object with a
// destructor.
struct Errors {
  jpeg_error_mgr manager;  // first, so that a pointer to it is a pointer to Errors
  jmp_buf back;
  char message[JMSG_LENGTH_MAX];
};

inline Errors& errors_of(j_common_ptr cinfo) { return *reinterpret_cast<Errors*>(cinfo->err); }

// A copy of libjpeg's table of messages, because not every static build lets a module link it.
constexpr const char* kMessages[] = {
#undef JERROR_H
#define JCOPYRIGHT_SHORT ""
#define JVERSION ""
#define JMESSAGE(code, text) text,
#include <jerror.h>
};

inline void format(j_common_ptr cinfo, char* text) {
  const jpeg_error_mgr& error = *cinfo->err;
  const bool known = error.msg_code > 0 && error.msg_code < static_cast<int>(std::size(kMessages));
  const char* message = known ? kMessages[error.msg_code] : "unknown error";
  const int* i = error.msg_parm.i;
  if (strstr(message, "%s") != nullptr) {
    snprintf(text, JMSG_LENGTH_MAX, message, error.msg_parm.s);
  } else {
    snprintf(text, JMSG_LENGTH_MAX, message, i[0], i[1], i[2], i[3], i[4], i[5], i[6], i[7]);
  }
}

[[noreturn]] inline void fail(j_common_ptr cinfo) {
  Errors& errors = errors_of(cinfo);
  format(cinfo, errors.message);
  longjmp(errors.back, 1);
}

// A warning after which libjpeg would invent pixels is an error.
inline void warn(j_common_ptr cinfo, int level) {
  if (level >= 0) return;
  switch (cinfo->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
    case JWRN_NOT_SEQUENTIAL:
      return;
    default:
      fail(cinfo);
  }
}

inline void ignore(j_common_ptr) {}

inline void reset(j_common_ptr cinfo) {
  cinfo->err->num_warnings = 0;
  cinfo->err->msg_code = 0;
}

inline void count_scans(j_common_ptr cinfo) {
  auto* decompress = reinterpret_cast<j_decompress_ptr>(cinfo);
  if (decompress->input_scan_number <= kMaxScans) return;
  Errors& errors = errors_of(cinfo);
  snprintf(errors.message, sizeof errors.message, "it has more than %d scans", kMaxScans);
  longjmp(errors.back, 1);
}

// A source that provides the bytes, and then end-of-image markers as often as libjpeg asks.
struct Source {
  jpeg_source_mgr manager;  // first, as in Errors
  bool ended;
};

inline void begin_source(j_decompress_ptr) {}

inline boolean end_source(j_decompress_ptr cinfo) {
  static const JOCTET marker[] = {0xFF, JPEG_EOI};
  auto& source = *reinterpret_cast<Source*>(cinfo->src);
  source.ended = true;
  source.manager.next_input_byte = marker;
  source.manager.bytes_in_buffer = sizeof marker;
  return TRUE;
}

inline void skip_source(j_decompress_ptr cinfo, long count) {
  jpeg_source_mgr& source = *cinfo->src;
  if (count <= 0) return;
  if (static_cast<size_t>(count) > source.bytes_in_buffer) {
    end_source(cinfo);
    return;
  }
  source.next_input_byte += count;
  source.bytes_in_buffer -= static_cast<size_t>(count);
}

inline void set_errors(Errors* errors) {
  *errors = Errors{};
  errors->manager.reset_error_mgr = reset;
  errors->manager.format_message = format;
  errors->manager.error_exit = fail;
  errors->manager.emit_message = warn;
  errors->manager.output_message = ignore;
}

inline void set_source(Source* source) {
  *source = Source{};
  source->manager.init_source = begin_source;
  source->manager.fill_input_buffer = end_source;
  source->manager.skip_input_data = skip_source;
  source->manager.resync_to_restart = jpeg_resync_to_restart;
  source->manager.term_source = begin_source;
}

}  // namespace jaxkern::image

#endif  // JAXKERN_IMAGE_JPEG_LIBRARY_H_
