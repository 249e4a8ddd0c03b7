/* Every function that returns a status, with arguments that are right. */
#ifndef EVERY_H
#define EVERY_H

#include "check.h"

struct objects {
    mlxgen_engine *engine;
    mlxgen_model *model;
    mlxgen_tokenizer *tokenizer;
    mlxgen_cache *cache;
    mlxgen_stream *stream;
    const char *path;
};

void make_objects(struct objects *objects);
void release_objects(struct objects *objects);
/* Calls them all: each must give MLXGEN_WRONG_STATE, clear its pointer outputs and leave the
 * others. Notes `mark` for each function. */
void every_function_is_refused(const struct objects *objects, const char *mark);
/* Calls what cannot fail on them. */
void every_getter_answers(const struct objects *objects, int alive);

#endif
