//! Answers of the APIs of language models, in the formats of their public documentation.

/// An answer, and what it costs.
pub(crate) struct ModelAnswer {
    /// The API, for paths and names of limits.
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) body: &'static str,
    /// The paths to the numbers with their weights, as `response_json` has them.
    pub(crate) paths: &'static [(&'static str, u64)],
    /// What the whole answer says. `None` where it has no number.
    pub(crate) due: Option<u64>,
    /// How the text after the answer's first part begins.
    pub(crate) second: &'static str,
    /// What the first part says by itself.
    pub(crate) found: Option<u64>,
}

impl ModelAnswer {
    /// The answer up to its first part.
    pub(crate) fn first_part(&self) -> &'static str {
        let (first, _) = self.body.split_once(self.second).expect("the answer has two parts");
        first
    }

    /// Whether the text says that nothing follows.
    pub(crate) fn says_its_end(&self) -> bool {
        let ends = ["[DONE]", "event: message_stop", "event: response.completed"];
        ends.iter().any(|end| self.body.contains(end))
    }

    /// The value of `response_json`.
    pub(crate) fn response_json(&self) -> String {
        let paths = self.paths.iter().map(|(path, weight)| format!("\"{path}\" = {weight}"));
        format!("{{ {} }}", paths.collect::<Vec<_>>().join(", "))
    }
}

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream; charset=utf-8";

const OPENAI_CHAT: &[(&str, u64)] = &[("usage.prompt_tokens", 1), ("usage.completion_tokens", 5)];
const OPENAI_RESPONSES: &[(&str, u64)] = &[
    ("usage.input_tokens | response.usage.input_tokens", 1),
    ("usage.output_tokens | response.usage.output_tokens", 5),
];
const ANTHROPIC: &[(&str, u64)] =
    &[("usage.input_tokens | message.usage.input_tokens", 1), ("usage.output_tokens", 5)];
const GEMINI: &[(&str, u64)] =
    &[("usageMetadata.promptTokenCount", 1), ("usageMetadata.candidatesTokenCount", 1)];
const COHERE: &[(&str, u64)] = &[
    ("usage.billed_units.input_tokens | delta.usage.billed_units.input_tokens", 1),
    ("usage.billed_units.output_tokens | delta.usage.billed_units.output_tokens", 4),
];
const OLLAMA: &[(&str, u64)] = &[("prompt_eval_count", 1), ("eval_count", 3)];

pub(crate) const ANSWERS: [ModelAnswer; 17] = [
    ModelAnswer {
        name: "openai-chat",
        kind: JSON,
        body: include_str!("../../data/answers/openai-chat.json"),
        paths: OPENAI_CHAT,
        due: Some(19 + 5 * 10),
        second: "  \"usage\"",
        found: None,
    },
    ModelAnswer {
        name: "openai-chat-stream",
        kind: EVENTS,
        body: include_str!("../../data/answers/openai-chat-stream.txt"),
        paths: OPENAI_CHAT,
        due: Some(19 + 5 * 10),
        second: "data: {\"id\":\"chatcmpl-Bx91kR\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\
                 \"model\":\"gpt-5-mini\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}",
        found: None,
    },
    ModelAnswer {
        name: "openai-chat-stream-without-usage",
        kind: EVENTS,
        body: include_str!("../../data/answers/openai-chat-stream-without-usage.txt"),
        paths: OPENAI_CHAT,
        due: None,
        second: "data: {\"id\":\"chatcmpl-Bx91kS\",\"object\":\"chat.completion.chunk\",\"model\":\"gpt-5-mini\",\
                 \"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}",
        found: None,
    },
    ModelAnswer {
        name: "openai-responses",
        kind: JSON,
        body: include_str!("../../data/answers/openai-responses.json"),
        paths: OPENAI_RESPONSES,
        due: Some(36 + 5 * 87),
        second: "  \"usage\"",
        found: None,
    },
    ModelAnswer {
        name: "openai-responses-stream",
        kind: EVENTS,
        body: include_str!("../../data/answers/openai-responses-stream.txt"),
        paths: OPENAI_RESPONSES,
        due: Some(36 + 5 * 87),
        second: "event: response.in_progress",
        found: None,
    },
    ModelAnswer {
        name: "anthropic",
        kind: JSON,
        body: include_str!("../../data/answers/anthropic.json"),
        paths: ANTHROPIC,
        due: Some(25 + 5 * 15),
        second: "\"stop_reason\"",
        found: None,
    },
    // The last event repeats the input.
    ModelAnswer {
        name: "anthropic-stream",
        kind: EVENTS,
        body: include_str!("../../data/answers/anthropic-stream.txt"),
        paths: ANTHROPIC,
        due: Some(25 + 5 * 15),
        second: "event: content_block_start",
        found: Some(25),
    },
    // Older versions say the input at the beginning alone.
    ModelAnswer {
        name: "anthropic-stream-older",
        kind: EVENTS,
        body: include_str!("../../data/answers/anthropic-stream-older.txt"),
        paths: ANTHROPIC,
        due: Some(25 + 5 * 15),
        second: "event: content_block_delta",
        found: Some(25),
    },
    ModelAnswer {
        name: "gemini",
        kind: "application/json; charset=UTF-8",
        body: r#"{
  "candidates": [
    {
      "content": { "parts": [{ "text": "Hello" }], "role": "model" },
      "finishReason": "STOP",
      "index": 0
    }
  ],
  "usageMetadata": {
    "promptTokenCount": 7,
    "candidatesTokenCount": 61,
    "totalTokenCount": 68,
    "promptTokensDetails": [{ "modality": "TEXT", "tokenCount": 7 }]
  },
  "modelVersion": "gemini-2.5-flash",
  "responseId": "Jk3a"
}
"#,
        paths: GEMINI,
        due: Some(68),
        second: "  \"usageMetadata\"",
        found: None,
    },
    ModelAnswer {
        name: "gemini-stream",
        kind: "text/event-stream",
        body: "data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"Hel\"}],\"role\": \"model\"},\"index\": 0}],\
               \"usageMetadata\": {\"promptTokenCount\": 7,\"totalTokenCount\": 7},\"responseId\": \"Jk3b\"}\r\n\r\n\
               data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"lo\"}],\"role\": \"model\"},\
               \"finishReason\": \"STOP\",\"index\": 0}],\"usageMetadata\": {\"promptTokenCount\": 7,\
               \"candidatesTokenCount\": 61,\"totalTokenCount\": 68},\"responseId\": \"Jk3b\"}\r\n\r\n",
        paths: GEMINI,
        due: Some(68),
        second: "data: {\"candidates\": [{\"content\": {\"parts\": [{\"text\": \"lo\"}]",
        found: Some(7),
    },
    // Without `alt=sse` the stream is one list.
    ModelAnswer {
        name: "gemini-list",
        kind: "application/json; charset=UTF-8",
        body: r#"[{
  "candidates": [
    { "content": { "parts": [{ "text": "Hel" }], "role": "model" }, "index": 0 }
  ],
  "usageMetadata": { "promptTokenCount": 7, "totalTokenCount": 7 },
  "responseId": "Jk3c"
}
,
{
  "candidates": [
    { "content": { "parts": [{ "text": "lo" }], "role": "model" }, "finishReason": "STOP", "index": 0 }
  ],
  "usageMetadata": { "promptTokenCount": 7, "candidatesTokenCount": 61, "totalTokenCount": 68 },
  "responseId": "Jk3c"
}
]
"#,
        paths: GEMINI,
        due: Some(68),
        second: ",\n{",
        found: Some(7),
    },
    ModelAnswer {
        name: "cohere",
        kind: JSON,
        body: include_str!("../../data/answers/cohere.json"),
        paths: COHERE,
        due: Some(5 + 4 * 418),
        second: "\"usage\"",
        found: None,
    },
    ModelAnswer {
        name: "cohere-stream",
        kind: EVENTS,
        body: include_str!("../../data/answers/cohere-stream.txt"),
        paths: COHERE,
        due: Some(5 + 4 * 418),
        second: "event: content-delta",
        found: None,
    },
    ModelAnswer {
        name: "mistral",
        kind: JSON,
        body: include_str!("../../data/answers/mistral.json"),
        paths: OPENAI_CHAT,
        due: Some(16 + 5 * 34),
        second: "\"object\"",
        found: Some(16 + 5 * 34),
    },
    ModelAnswer {
        name: "mistral-stream",
        kind: EVENTS,
        body: include_str!("../../data/answers/mistral-stream.txt"),
        paths: OPENAI_CHAT,
        due: Some(16 + 5 * 34),
        second: "data: {\"id\":\"b1f0\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\
                 \"model\":\"mistral-small-latest\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}",
        found: None,
    },
    ModelAnswer {
        name: "ollama",
        kind: "application/json; charset=utf-8",
        body: r#"{"model":"llama3.2","created_at":"2026-10-12T22:52:00Z","message":{"role":"assistant","content":"Hello"},"done_reason":"stop","done":true,"total_duration":5191566416,"load_duration":2154458,"prompt_eval_count":26,"prompt_eval_duration":383809000,"eval_count":298,"eval_duration":4799921000}"#,
        paths: OLLAMA,
        due: Some(26 + 3 * 298),
        second: "\"done_reason\"",
        found: None,
    },
    ModelAnswer {
        name: "ollama-stream",
        kind: "application/x-ndjson",
        body: r#"{"model":"llama3.2","created_at":"2026-10-12T22:52:00Z","message":{"role":"assistant","content":"Hel"},"done":false}
{"model":"llama3.2","created_at":"2026-10-12T22:52:01Z","message":{"role":"assistant","content":"lo"},"done":false}
{"model":"llama3.2","created_at":"2026-10-12T22:52:02Z","message":{"role":"assistant","content":""},"done":true,"total_duration":4883583458,"prompt_eval_count":26,"prompt_eval_duration":342546000,"eval_count":282,"eval_duration":4535599000}
"#,
        paths: OLLAMA,
        due: Some(26 + 3 * 282),
        second: "{\"model\":\"llama3.2\",\"created_at\":\"2026-10-12T22:52:01Z\"",
        found: None,
    },
];
