// A producer of records as a C ABI: what makes each record of a batch from one row of a source,
// straight into the batch's memory. Whoever assembles batches takes it in a capsule of this name
// and knows nothing else about it; whoever makes it knows nothing about batches' memory.
//
// No C++ type, no Python object and no exception crosses this boundary.
#ifndef JAXKERN_CORE_PRODUCER_H_
#define JAXKERN_CORE_PRODUCER_H_

#include <stddef.h>
#include <stdint.h>

#define JAXKERN_PRODUCER_CAPSULE "jaxkern.producer.v2"
#define JAXKERN_PRODUCER_VERSION 2

#ifdef __cplusplus
extern "C" {
#endif

// Some records of one batch.
typedef struct JaxkernRecords {
  int64_t count;
  const void* const* rows;         // [count] each record's source row, row_bytes long
  const void* const* operands;     // [operands] the first record's parameters, 8-byte aligned
  const int64_t* operand_strides;  // [operands] bytes to the next record's; 0: shared by all
  void* output;                    // [count, output_bytes] without gaps
  // [count] ones, where a record that cannot be made is not an error: the producer sets its place
  // to 0, writes what stands for it to its output, and goes on. Null: `run` returns the error.
  uint8_t* valid;
} JaxkernRecords;

typedef struct JaxkernProducer {
  uint32_t version;              // JAXKERN_PRODUCER_VERSION
  uint32_t size;                 // sizeof(JaxkernProducer) where it was made
  void* state;                   // alive from a `retain` to its `release`; the capsule holds one
  void (*retain)(void* state);   // these two in any thread
  void (*release)(void* state);  //
  int64_t row_bytes;             // read at each row
  int64_t output_bytes;          // written for each record
  int64_t operands;              // how many arrays of parameters
  const int64_t* operand_bytes;  // [operands] of one record; belongs to `state`
  // Makes the records. 0: done; else `message` (always terminated) says what is wrong, and the
  // output is undefined: k > 0 where it is wrong with record k - 1 of these, else below 0. Called
  // from several threads at once, without the interpreter's lock.
  int32_t (*run)(void* state, const JaxkernRecords* records, char* message, size_t message_size);
} JaxkernProducer;

#ifdef __cplusplus
}
#endif

#endif  // JAXKERN_CORE_PRODUCER_H_
