// The C ABI of a record producer, which writes each record of a batch directly into the batch's
// memory, from one row of a source. Code that assembles batches receives it in a capsule of the
// name below and knows nothing else about it, and a producer knows nothing about the memory of
// batches.
//
// No C++ type, Python object or exception crosses this boundary.
#ifndef JAXKERN_CORE_PRODUCER_H_
#define JAXKERN_CORE_PRODUCER_H_

#include <stddef.h>
#include <stdint.h>

#define JAXKERN_PRODUCER_CAPSULE "jaxkern.producer.v3"
#define JAXKERN_PRODUCER_VERSION 3

#ifdef __cplusplus
extern "C" {
#endif

// Records of one batch.
typedef struct JaxkernRecords {
  int64_t count;
  const void* const* rows;         // [count] source row of each record, row_bytes long
  const void* const* operands;     // [operands] parameters of the first record, 8-byte aligned
  const int64_t* operand_strides;  // [operands] bytes to the next record's; 0: shared
  void* output;                    // [count, output_bytes] without gaps
  // [count] ones, if invalid records are masked: the producer sets the flag of such a record to 0,
  // writes a placeholder to its output and continues. Null: `run` returns an error.
  uint8_t* valid;
  int32_t streaming;  // 1: the output leaves the caches before it is read; 0: it is read from them
} JaxkernRecords;

typedef struct JaxkernProducer {
  uint32_t version;              // JAXKERN_PRODUCER_VERSION
  uint32_t size;                 // sizeof(JaxkernProducer) in the code that created it
  void* state;                   // alive from a `retain` to its `release`; the capsule owns one
  void (*retain)(void* state);   // callable in any thread
  void (*release)(void* state);  // callable in any thread
  int64_t row_bytes;             // size of a source row
  int64_t output_bytes;          // size of a record's output
  int64_t operands;              // number of parameter arrays
  const int64_t* operand_bytes;  // [operands] size per record; owned by `state`
  // Writes the records. Returns 0, or sets `message` (always terminated), leaves the output
  // undefined and returns k > 0 for an error in record k - 1 of these, or a negative number for
  // another error. Called from several threads at once, without the interpreter's lock.
  int32_t (*run)(void* state, const JaxkernRecords* records, char* message, size_t message_size);
} JaxkernProducer;

#ifdef __cplusplus
}
#endif

#endif  // JAXKERN_CORE_PRODUCER_H_
