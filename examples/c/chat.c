/*
 * chat: answers a question, or holds a conversation, with a language model.
 *
 *     chat [-v] [-s SYSTEM] [-n TOKENS] [-t TEMPERATURE] [-r SEED] MODEL [PROMPT]
 *
 * MODEL is a folder (safetensors) or a .gguf file. Without PROMPT it reads one question per line
 * and keeps the conversation in a cache set, so that each turn computes only what is new.
 * The answer goes to standard output, everything else to standard error. Ctrl-C stops the answer
 * (the conversation goes on); a second one, or one at the prompt, ends the program.
 */
#define _POSIX_C_SOURCE 200809L

#include <mlxgen.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Exit codes, as shells know them. */
enum { EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* ---- text that grows ------------------------------------------------------------------------ */

struct text {
    char *data;
    size_t size, capacity;
};

static void append(struct text *text, const char *data, size_t size) {
    if (text->capacity - text->size < size) {
        size_t capacity = 2 * (text->size + size);
        char *grown = realloc(text->data, capacity);
        if (grown == NULL) {
            fputs("chat: out of memory\n", stderr);
            exit(EXIT_FAILURE);
        }
        text->data = grown;
        text->capacity = capacity;
    }
    memcpy(text->data + text->size, data, size);
    text->size += size;
}

static void append_string(struct text *text, const char *string) {
    append(text, string, strlen(string));
}

/* Appends {"role":ROLE,"content":CONTENT}; JSON asks for escapes of quotes, backslashes and
 * control characters only. */
static void append_message(struct text *json, const char *role, const char *content, size_t size) {
    append_string(json, json->size == 0 ? "[{\"role\":\"" : ",{\"role\":\"");
    append_string(json, role);
    append_string(json, "\",\"content\":\"");
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)content[i];
        char escape[8];
        if (byte == '"' || byte == '\\') {
            append(json, "\\", 1);
            append(json, content + i, 1);
        } else if (byte < 0x20) {
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)byte);
            append_string(json, escape);
        } else {
            append(json, content + i, 1);
        }
    }
    append_string(json, "\"}");
}

/* ---- Ctrl-C --------------------------------------------------------------------------------- */

/* The token of the work in progress. The handler may run on any thread, and
 * mlxgen_cancel_request is the one function that is safe in it. */
static mlxgen_cancel *volatile current_cancel;

static void interrupt(int signal_number) {
    (void)signal_number;
    mlxgen_cancel_request(current_cancel);
}

/* From here to `unwatch_interrupt` the first Ctrl-C cancels; the next one ends the program. */
static void watch_interrupt(mlxgen_cancel *cancel) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = interrupt;
    action.sa_flags = SA_RESTART | (int)SA_RESETHAND;
    current_cancel = cancel;
    sigaction(SIGINT, &action, NULL);
}

static void unwatch_interrupt(void) {
    signal(SIGINT, SIG_DFL);
    current_cancel = NULL;
}

/* ---- the conversation ----------------------------------------------------------------------- */

struct chat {
    mlxgen_engine *engine;
    mlxgen_model *model;
    mlxgen_tokenizer *tokenizer;
    mlxgen_cache *cache;
    int has_template;
    int verbose;
    mlxgen_generate_options options;
    /* The messages so far: a JSON array that lacks its bracket; for a model without a chat
     * template the plain text, which it continues. */
    struct text messages;
};

/* Reports a failure and releases the error. Returns whether there was one. */
static int failed(mlxgen_status status, mlxgen_error **error, const char *action) {
    if (status == MLXGEN_OK) return 0;
    fprintf(stderr, "chat: cannot %s: %s (%s)\n", action, mlxgen_error_message(*error, NULL),
            mlxgen_status_name(status));
    mlxgen_error_release(*error);
    *error = NULL;
    return 1;
}

static void show_load(void *user, int32_t phase, uint64_t done, uint64_t total) {
    unsigned *shown = user;
    unsigned percent = total > 0 ? (unsigned)(done * 100 / total) : 0;
    if (phase != MLXGEN_LOAD_WEIGHTS || percent == *shown) return;
    *shown = percent;
    fprintf(stderr, "\rloading %3u %%", percent);
}

/* Loads the model and makes the cache set. Returns 0, or an exit code. */
static int open_model(struct chat *chat, const char *path) {
    mlxgen_model_options options;
    mlxgen_model_description info = {.struct_size = sizeof info};
    mlxgen_cancel *cancel = NULL;
    mlxgen_error *error = NULL;
    mlxgen_status status;
    unsigned shown = 0;

    if (failed(mlxgen_engine_new(NULL, &chat->engine, &error), &error, "start")) return EXIT_FAILURE;
    if (failed(mlxgen_cancel_new(&cancel, &error), &error, "start")) return EXIT_FAILURE;

    mlxgen_model_options_init(&options, sizeof options);
    options.cancel = cancel;
    if (chat->verbose) {
        options.progress = show_load;
        options.progress_user = &shown;
    }
    watch_interrupt(cancel);
    status = mlxgen_model_load(chat->engine, path, strlen(path), &options, &chat->model, &error);
    unwatch_interrupt();
    mlxgen_cancel_release(cancel);
    if (chat->verbose) fputc('\n', stderr);
    if (failed(status, &error, "load the model"))
        return status == MLXGEN_CANCELLED ? EXIT_INTERRUPTED : EXIT_FAILURE;

    if (failed(mlxgen_model_info(chat->model, &info, &error), &error, "describe the model") ||
        failed(mlxgen_model_tokenizer(chat->model, &chat->tokenizer, &error), &error,
               "find the tokenizer") ||
        failed(mlxgen_cache_new(chat->model, NULL, &chat->cache, &error), &error, "make a cache"))
        return EXIT_FAILURE;
    chat->has_template = info.has_chat_template;
    if (chat->verbose)
        fprintf(stderr, "%s: %s, %s, computed in %s\n", info.name, info.family, info.weights,
                info.compute_type);
    return 0;
}

static void close_model(struct chat *chat) {
    free(chat->messages.data);
    mlxgen_cache_release(chat->cache);
    mlxgen_tokenizer_release(chat->tokenizer);
    mlxgen_model_release(chat->model);
    mlxgen_engine_release(chat->engine);
}

/* The whole conversation as tokens (uint32_t). */
static mlxgen_status render(struct chat *chat, mlxgen_buffer **tokens, mlxgen_error **error) {
    const struct text *messages = &chat->messages;
    struct text json = {NULL, 0, 0};
    mlxgen_status status;
    if (!chat->has_template)
        return mlxgen_tokenize(chat->tokenizer, messages->data, messages->size,
                               MLXGEN_TOKENIZE_ADD_SPECIAL, tokens, error);
    append(&json, messages->data, messages->size);
    append(&json, "]", 1);
    status = mlxgen_chat_render(chat->tokenizer, json.data, json.size, NULL, NULL, tokens, error);
    free(json.data);
    return status;
}

static void show_end(const mlxgen_event *end) {
    static const char *const reasons[] = {"end of answer", "stop string", "token limit",
                                          "grammar end",   "cancelled",   "context full"};
    size_t known = sizeof reasons / sizeof *reasons;
    size_t reason = (size_t)end->end_reason;
    fprintf(stderr,
            "[%s; prompt %llu tokens, %llu of them reused; generated %llu; "
            "first token %.2f s, prefill %.2f s, decode %.2f s",
            reason < known ? reasons[reason] : "end", (unsigned long long)end->prompt_tokens,
            (unsigned long long)end->reused_tokens, (unsigned long long)end->generated_tokens,
            end->first_token_seconds, end->prefill_seconds, end->decode_seconds);
    if (end->generated_tokens > 1 && end->decode_seconds > 0)
        fprintf(stderr, ", %.1f tokens/s", (double)(end->generated_tokens - 1) / end->decode_seconds);
    fputs("]\n", stderr);
}

/* Streams one answer to standard output and adds it to the conversation.
 * Returns 0, EXIT_INTERRUPTED after Ctrl-C, or EXIT_FAILURE. */
static int answer(struct chat *chat) {
    mlxgen_generate_options options = chat->options;
    mlxgen_event event = {.struct_size = sizeof event};
    mlxgen_prompt_part prompt = {.struct_size = sizeof prompt, .kind = MLXGEN_PART_TOKENS};
    mlxgen_buffer *tokens = NULL;
    mlxgen_stream *stream = NULL;
    mlxgen_error *error = NULL;
    mlxgen_status status;
    struct text text = {NULL, 0, 0};
    int code = EXIT_FAILURE;

    if (failed(render(chat, &tokens, &error), &error, "render the conversation")) goto done;
    prompt.tokens = mlxgen_buffer_data(tokens);
    prompt.token_count = mlxgen_buffer_size(tokens) / sizeof(uint32_t);

    /* A token is good for one use: once requested, it stays so. */
    if (failed(mlxgen_cancel_new(&options.cancel, &error), &error, "start")) goto done;
    watch_interrupt(options.cancel);
    if (failed(mlxgen_stream_open(chat->model, chat->cache, &prompt, 1, &options, &stream, &error),
               &error, "start an answer"))
        goto done;

    while ((status = mlxgen_stream_next(stream, MLXGEN_WAIT_FOREVER, &event, &error)) ==
           MLXGEN_OK) {
        if (event.kind == MLXGEN_EVENT_TEXT) {
            fwrite(event.text, 1, event.text_size, stdout);
            fflush(stdout);
            append(&text, event.text, event.text_size);
        } else if (event.kind == MLXGEN_EVENT_PREFILL && chat->verbose) {
            fprintf(stderr, "prefill %llu/%llu\n", (unsigned long long)event.prefill_done,
                    (unsigned long long)event.prefill_total);
        } else if (event.kind == MLXGEN_EVENT_END) {
            puts("");
            fflush(stdout);
            if (chat->verbose) show_end(&event);
            code = event.end_reason == MLXGEN_END_CANCELLED ? EXIT_INTERRUPTED : EXIT_SUCCESS;
        }
    }
    if (status != MLXGEN_DONE) {
        failed(status, &error, "go on");
        code = EXIT_FAILURE;
    }
    if (chat->has_template)
        append_message(&chat->messages, "assistant", text.data, text.size);
    else
        append(&chat->messages, text.data, text.size);

done:
    unwatch_interrupt();
    mlxgen_stream_release(stream); /* closes it: the cache set is free again */
    mlxgen_cancel_release(options.cancel);
    mlxgen_buffer_release(tokens);
    free(text.data);
    return code;
}

static int ask(struct chat *chat, const char *prompt, size_t size) {
    if (chat->has_template)
        append_message(&chat->messages, "user", prompt, size);
    else
        append(&chat->messages, prompt, size);
    return answer(chat);
}

/* One question per line until the end of the input. */
static int converse(struct chat *chat) {
    char *line = NULL;
    size_t capacity = 0;
    int code = 0;
    for (;;) {
        ssize_t size;
        if (isatty(STDIN_FILENO)) fputs("> ", stderr);
        size = getline(&line, &capacity, stdin);
        if (size < 0) break;
        while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r')) size--;
        if (size == 0) continue;
        if (ask(chat, line, (size_t)size) == EXIT_FAILURE) {
            code = EXIT_FAILURE;
            break;
        }
    }
    free(line);
    return code;
}

static int usage(void) {
    fputs("usage: chat [-v] [-s SYSTEM] [-n TOKENS] [-t TEMPERATURE] [-r SEED] MODEL [PROMPT]\n",
          stderr);
    return EXIT_USAGE;
}

int main(int argc, char **argv) {
    struct chat chat;
    const char *system_prompt = NULL;
    int option, code;

    memset(&chat, 0, sizeof chat);
    mlxgen_generate_options_init(&chat.options, sizeof chat.options);
    chat.options.has_max_tokens = 1;
    chat.options.max_tokens = 512;

    while ((option = getopt(argc, argv, "vs:n:t:r:")) != -1) {
        switch (option) {
        case 'v': chat.verbose = 1; break;
        case 's': system_prompt = optarg; break;
        case 'n': chat.options.max_tokens = strtoull(optarg, NULL, 10); break;
        case 't': chat.options.temperature = strtof(optarg, NULL); break;
        case 'r':
            chat.options.has_seed = 1;
            chat.options.seed = strtoull(optarg, NULL, 10);
            break;
        default: return usage();
        }
    }
    if (argc - optind < 1 || argc - optind > 2) return usage();

    code = open_model(&chat, argv[optind]);
    if (code == 0) {
        const char *prompt = argv[optind + 1];
        if (system_prompt && chat.has_template)
            append_message(&chat.messages, "system", system_prompt, strlen(system_prompt));
        code = prompt ? ask(&chat, prompt, strlen(prompt)) : converse(&chat);
    }
    close_model(&chat);
    return code;
}
