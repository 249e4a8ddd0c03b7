/* Programs that were compiled against an older or a newer header. */
#include "check.h"

/* The options and the event of a version to come: what is known today, and a new member. */
struct newer_engine_options {
    mlxgen_engine_options known;
    uint64_t added;
};
struct newer_generate_options {
    mlxgen_generate_options known;
    uint64_t added[4];
};
struct newer_event {
    mlxgen_event known;
    uint64_t added;
};
struct newer_part {
    mlxgen_prompt_part known;
    uint64_t added;
};

/* The first versions of the structs: they are older callers once members were added. */
enum {
    FIRST_ENGINE_OPTIONS = 32,
    FIRST_MEMORY_INFO = 72,
    FIRST_CHAT_OPTIONS = 72,
    FIRST_MODEL_OPTIONS = 48,
    FIRST_MODEL_DESCRIPTION = 152,
    FIRST_MEMORY_ESTIMATE = 104,
    FIRST_CACHE_OPTIONS = 16,
    FIRST_CACHE_DESCRIPTION = 40,
    FIRST_EVENT = 192,
    FIRST_PROMPT_PART = 32,
    FIRST_GENERATE_OPTIONS = 112
};

/* Each _init fills as many bytes as the caller says with the defaults, no more, and writes that number. */
typedef mlxgen_status (*init_function)(void *, size_t);

static void init(init_function function, size_t first)
{
    union {
        unsigned char bytes[5000];
        size_t size;
    } place, whole;
    CHECK(function(&whole, 4096) == MLXGEN_OK);
    for (size_t size = 0; size < first + 120; size += size < first ? 8 : 4) {
        memset(&place, 0xaa, sizeof place);
        mlxgen_status status = function(&place, size);
        CHECK(status == (size < first ? MLXGEN_INVALID_ARGUMENT : MLXGEN_OK));
        if (size < first) {
            CHECK(place.bytes[0] == 0xaa);
            continue;
        }
        CHECK(place.size == size);
        CHECK(place.bytes[size] == 0xaa);
        CHECK(memcmp(place.bytes + first, whole.bytes + first, size - first) == 0);
    }
    CHECK(function(&place, sizeof place) == MLXGEN_INVALID_ARGUMENT);
    CHECK(function(NULL, first) == MLXGEN_INVALID_ARGUMENT);
}

static void older(mlxgen_engine *engine)
{
    mlxgen_engine_options options;
    mlxgen_engine_options_init(&options, FIRST_ENGINE_OPTIONS);
    mlxgen_engine *second = NULL;
    EXPECT(OK, mlxgen_engine_new, &options, &second, &error);
    mlxgen_engine_release(second);
    /* The library writes no byte beyond what the caller knows. */
    union {
        mlxgen_memory_info info;
        unsigned char bytes[FIRST_MEMORY_INFO + 8];
    } memory;
    memset(&memory, 0xaa, sizeof memory);
    memory.info.struct_size = FIRST_MEMORY_INFO;
    EXPECT(OK, mlxgen_engine_memory, engine, &memory.info, &error);
    CHECK(memory.info.struct_size == FIRST_MEMORY_INFO && memory.bytes[FIRST_MEMORY_INFO] == 0xaa);
    memory.info.struct_size = FIRST_MEMORY_INFO - 8;
    EXPECT(INVALID_ARGUMENT, mlxgen_engine_memory, engine, &memory.info, &error);
    check_field("struct_size", -1);
    options.struct_size = 0;
    EXPECT(INVALID_ARGUMENT, mlxgen_engine_new, &options, &second, &error);
    check_field("struct_size", -1);
    options.struct_size = SIZE_MAX;
    EXPECT(INVALID_ARGUMENT, mlxgen_engine_new, &options, &second, &error);
    check_field("struct_size", -1);
}

static void newer(mlxgen_engine *engine, mlxgen_model *model)
{
    struct newer_engine_options options;
    mlxgen_engine_options_init(&options.known, sizeof options);
    CHECK(options.known.struct_size == sizeof options && options.added == 0);
    mlxgen_engine *second = NULL;
    EXPECT(OK, mlxgen_engine_new, &options.known, &second, &error);
    mlxgen_engine_release(second);
    options.added = UINT64_C(1) << 63;
    EXPECT(INVALID_ARGUMENT, mlxgen_engine_new, &options.known, &second, &error);
    check_field("options", (long)offsetof(struct newer_engine_options, added) + 7);
    CHECK(second == NULL);

    struct newer_generate_options generate;
    mlxgen_generate_options_init(&generate.known, sizeof generate);
    generate.known.has_max_tokens = 1;
    generate.known.max_tokens = 2;
    struct newer_part parts[2];
    const uint32_t tokens[] = {7, 8};
    for (int index = 0; index < 2; index++) {
        mlxgen_prompt_part_init(&parts[index].known, sizeof parts[index]);
        parts[index].known.tokens = tokens + index;
        parts[index].known.token_count = 1;
    }
    mlxgen_cache *cache = new_cache(model);
    mlxgen_stream *stream = NULL;
    EXPECT(OK, mlxgen_stream_open, model, cache, &parts[0].known, 2, &generate.known, &stream, &error);
    /* What the library does not know of an event is cleared. */
    struct newer_event event;
    mlxgen_event_init(&event.known, sizeof event);
    event.added = 99;
    EXPECT(OK, mlxgen_stream_next, stream, MLXGEN_WAIT_FOREVER, &event.known, &error);
    CHECK(event.added == 0 && event.known.struct_size == sizeof event);
    CHECK(drain(stream, NULL, 0) == MLXGEN_END_MAX_TOKENS);
    mlxgen_stream_release(stream);
    /* The distance between the parts was right: both tokens are there. */
    mlxgen_buffer *held = NULL;
    EXPECT(OK, mlxgen_cache_tokens, cache, &held, &error);
    CHECK(memcmp(mlxgen_buffer_data(held), tokens, sizeof tokens) == 0);
    mlxgen_buffer_release(held);
    generate.added[3] = 1;
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, cache, &parts[0].known, 2, &generate.known,
           &stream, &error);
    check_field("options", (long)offsetof(struct newer_generate_options, added[3]));
    generate.added[3] = 0;
    parts[1].added = 1;
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, cache, &parts[0].known, 2, &generate.known,
           &stream, &error);
    check_field("parts", 1);
    parts[1].added = 0;
    parts[1].known.struct_size = sizeof parts[1].known;
    EXPECT(INVALID_ARGUMENT, mlxgen_stream_open, model, cache, &parts[0].known, 2, &generate.known,
           &stream, &error);
    check_field("parts", 1);
    mlxgen_cache_release(cache);
    (void)engine;
}

int main(int argc, char **argv)
{
    check_begin(argc, argv);
    init((init_function)mlxgen_engine_options_init, FIRST_ENGINE_OPTIONS);
    init((init_function)mlxgen_memory_info_init, FIRST_MEMORY_INFO);
    init((init_function)mlxgen_memory_estimate_init, FIRST_MEMORY_ESTIMATE);
    init((init_function)mlxgen_chat_options_init, FIRST_CHAT_OPTIONS);
    init((init_function)mlxgen_model_options_init, FIRST_MODEL_OPTIONS);
    init((init_function)mlxgen_model_description_init, FIRST_MODEL_DESCRIPTION);
    init((init_function)mlxgen_cache_options_init, FIRST_CACHE_OPTIONS);
    init((init_function)mlxgen_cache_description_init, FIRST_CACHE_DESCRIPTION);
    init((init_function)mlxgen_event_init, FIRST_EVENT);
    init((init_function)mlxgen_prompt_part_init, FIRST_PROMPT_PART);
    init((init_function)mlxgen_generate_options_init, FIRST_GENERATE_OPTIONS);
    mlxgen_engine *engine = new_engine();
    mlxgen_model *model = load_model(engine, "{}");
    older(engine);
    newer(engine, model);
    mlxgen_model_release(model);
    mlxgen_engine_release(engine);
    check_no_handles();
    return 0;
}
