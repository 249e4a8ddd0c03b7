import CMLXGen

/// Conversations as models know them.
public enum Chat {
    /// What one side says.
    public struct Message: Codable, Hashable, Sendable {
        /// Who speaks. Templates may know more roles than those named here.
        public struct Role: RawRepresentable, Codable, Hashable, Sendable {
            public let rawValue: String

            public init(rawValue: String) {
                self.rawValue = rawValue
            }

            /// Instructions for the whole conversation.
            public static let system = Role(rawValue: "system")
            /// The person.
            public static let user = Role(rawValue: "user")
            /// The model.
            public static let assistant = Role(rawValue: "assistant")
            /// The result of a tool that the model called.
            public static let tool = Role(rawValue: "tool")
        }

        /// Who speaks.
        public var role: Role
        /// What is said.
        public var content: String

        public init(role: Role, content: String) {
            self.role = role
            self.content = content
        }

        /// A message with instructions.
        public static func system(_ content: String) -> Message { .init(role: .system, content: content) }
        /// A message of the person.
        public static func user(_ content: String) -> Message { .init(role: .user, content: content) }
        /// A message of the model.
        public static func assistant(_ content: String) -> Message {
            .init(role: .assistant, content: content)
        }
        /// A tool's result.
        public static func tool(_ content: String) -> Message { .init(role: .tool, content: content) }
    }

    /// How a conversation becomes a prompt.
    public struct Options: Equatable, Sendable {
        /// Tool descriptions: a JSON array, as the model's template expects it.
        public var toolsJSON: String?
        /// One of several templates of the model.
        public var templateName: String?
        /// A JSON object of further variables for the template, such as `{"enable_thinking":false}`.
        public var extraJSON: String?
        /// How a template sees the arguments of earlier tool calls.
        public var toolArguments: ToolArguments
        /// End the prompt with the beginning of an answer.
        public var addGenerationPrompt: Bool
        /// Let texts such as `<|im_end|>` inside messages become control tokens.
        public var parseSpecialTokensInContent: Bool

        /// How a template sees the arguments of a tool call.
        public enum ToolArguments: Int32, Sendable {
            /// As the message has them.
            case asGiven = 0
            /// As a JSON object.
            case object
            /// As JSON text.
            case text
        }

        public init(
            toolsJSON: String? = nil, templateName: String? = nil, extraJSON: String? = nil,
            toolArguments: ToolArguments = .asGiven, addGenerationPrompt: Bool = true,
            parseSpecialTokensInContent: Bool = false
        ) {
            self.toolsJSON = toolsJSON
            self.templateName = templateName
            self.extraJSON = extraJSON
            self.toolArguments = toolArguments
            self.addGenerationPrompt = addGenerationPrompt
            self.parseSpecialTokensInContent = parseSpecialTokensInContent
        }

        func withLibraryOptions<Result>(
            _ body: (UnsafePointer<mlxgen_chat_options>) throws -> Result
        ) rethrows -> Result {
            var options = mlxgen_chat_options()
            _ = mlxgen_chat_options_init(&options, MemoryLayout.size(ofValue: options))
            options.tool_arguments = toolArguments.rawValue
            options.add_generation_prompt = addGenerationPrompt ? 1 : 0
            options.parse_special_in_content = parseSpecialTokensInContent ? 1 : 0
            return try (toolsJSON ?? "").withLibraryText { tools, size in
                options.tools_json = toolsJSON == nil ? nil : tools
                options.tools_json_size = size
                return try (templateName ?? "").withLibraryText { name, size in
                    options.template_name = templateName == nil ? nil : name
                    options.template_name_size = size
                    return try (extraJSON ?? "").withLibraryText { extra, size in
                        options.extra_json = extraJSON == nil ? nil : extra
                        options.extra_json_size = size
                        return try body(&options)
                    }
                }
            }
        }
    }
}
