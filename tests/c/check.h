/*
 * What the C tests share. Each test is a program: it gets a folder for its files as its first
 * argument, prints only when a check fails, and then ends with 1.
 */
#ifndef CHECK_H
#define CHECK_H

#include <mlxgen.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
/* A literal as the pointer and size of a text argument. */
#define TEXT(literal) ("" literal), (sizeof(literal) - 1)

#define CHECK(condition) ((condition) ? (void)0 : check_failed(__FILE__, __LINE__, #condition))

/* Calls a function that must give MLXGEN_<code>. CALL also tells the runner that the function was
 * brought to that code; EXPECT does not, and is for loops and threads. Of both the runner hears which
 * errors came: their codes must be in the function's comment, and the field of INVALID_ARGUMENT a
 * parameter or a member of a struct. */
#define CALL(code, function, ...)                                                                 \
    (check_note(#function, #code), EXPECT(code, function, __VA_ARGS__))
#define EXPECT(code, function, ...)                                                               \
    check_status(__FILE__, __LINE__, #function, MLXGEN_##code, function(__VA_ARGS__))

/* The error of this thread's latest call: pass &error as out_error. EXPECT releases it and keeps
 * its texts. */
extern _Thread_local mlxgen_error *error;
extern _Thread_local char message[512];
extern _Thread_local char detail[512];

_Noreturn void check_failed(const char *file, int line, const char *what);
void check_note(const char *function, const char *code);
void check_status(const char *file, int line, const char *function, mlxgen_status expected,
                  mlxgen_status status);
/* Whether a failure must come with an error object; not so in a child made by fork. */
extern int errors_expected;
/* The latest error's detail must have this field, and this position unless it is negative. */
void check_field(const char *field, long position);
/* All handles must be released by now. */
void check_no_handles(void);

/* The folder for the test's files; set by check_begin. */
extern const char *folder;
void check_begin(int argc, char **argv);

/* Writes a file into the test's folder; gives its path, which lives until the test ends. */
const char *write_file(const char *name, const char *text);
/* Makes a folder in the test's folder; gives its path. */
const char *make_folder(const char *name);
/* Makes the folder of a model of the fake back end. `json` is its fake-model.json. */
const char *fake_model(const char *json);
/* A folder with a tiny tokenizer of whole words, and a chat template. */
const char *word_tokenizer(void);

/* An engine with default options; a model with default options. */
mlxgen_engine *new_engine(void);
mlxgen_model *load_model(mlxgen_engine *engine, const char *json);
mlxgen_cache *new_cache(mlxgen_model *model);
/* A stream over the bytes of `prompt`, which are the fake model's token ids. */
mlxgen_stream *open_stream(mlxgen_model *model, mlxgen_cache *cache, const char *prompt,
                           const mlxgen_generate_options *options);
mlxgen_generate_options generate_options(void);
/* At most 64 tokens. */
mlxgen_prompt_part prompt_part(const char *prompt);

/* Pulls a stream to its end; gives the reason. Its text goes to `text`, cut off at `capacity`. */
int32_t drain(mlxgen_stream *stream, char *text, size_t capacity);

double seconds_now(void);
void sleep_ms(unsigned milliseconds);
/* From MLXGEN_TEST_SECONDS, else `otherwise`. */
double test_seconds(double otherwise);

#endif
