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
        body: r#"{
  "id": "chatcmpl-Bx91kQ",
  "object": "chat.completion",
  "created": 1790000000,
  "model": "gpt-5-mini-2025-08-07",
  "choices": [
    {
      "index": 0,
      "message": {
        "role": "assistant",
        "content": "It said: {\"usage\":{\"prompt_tokens\":9}} \\ \"usage\"",
        "refusal": null,
        "annotations": []
      },
      "logprobs": null,
      "finish_reason": "stop"
    }
  ],
  "usage": {
    "prompt_tokens": 19,
    "completion_tokens": 10,
    "total_tokens": 29,
    "prompt_tokens_details": { "cached_tokens": 0, "audio_tokens": 0 },
    "completion_tokens_details": { "reasoning_tokens": 4, "accepted_prediction_tokens": 0 }
  },
  "service_tier": "default",
  "system_fingerprint": null
}
"#,
        paths: OPENAI_CHAT,
        due: Some(19 + 5 * 10),
        second: "  \"usage\"",
        found: None,
    },
    ModelAnswer {
        name: "openai-chat-stream",
        kind: EVENTS,
        body: r#"data: {"id":"chatcmpl-Bx91kR","object":"chat.completion.chunk","created":1790000000,"model":"gpt-5-mini","choices":[{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"finish_reason":null}],"usage":null,"obfuscation":"aQ3"}

data: {"id":"chatcmpl-Bx91kR","object":"chat.completion.chunk","created":1790000000,"model":"gpt-5-mini","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}],"usage":null,"obfuscation":"x"}

data: {"id":"chatcmpl-Bx91kR","object":"chat.completion.chunk","created":1790000000,"model":"gpt-5-mini","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null,"obfuscation":""}

data: {"id":"chatcmpl-Bx91kR","object":"chat.completion.chunk","created":1790000000,"model":"gpt-5-mini","choices":[],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0}}}

data: [DONE]

"#,
        paths: OPENAI_CHAT,
        due: Some(19 + 5 * 10),
        second: "data: {\"id\":\"chatcmpl-Bx91kR\",\"object\":\"chat.completion.chunk\",\"created\":1790000000,\
                 \"model\":\"gpt-5-mini\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}",
        found: None,
    },
    ModelAnswer {
        name: "openai-chat-stream-without-usage",
        kind: EVENTS,
        body: r#"data: {"id":"chatcmpl-Bx91kS","object":"chat.completion.chunk","model":"gpt-5-mini","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"chatcmpl-Bx91kS","object":"chat.completion.chunk","model":"gpt-5-mini","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":"stop"}]}

data: [DONE]

"#,
        paths: OPENAI_CHAT,
        due: None,
        second: "data: {\"id\":\"chatcmpl-Bx91kS\",\"object\":\"chat.completion.chunk\",\"model\":\"gpt-5-mini\",\
                 \"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"}",
        found: None,
    },
    ModelAnswer {
        name: "openai-responses",
        kind: JSON,
        body: r#"{
  "id": "resp_68c1",
  "object": "response",
  "status": "completed",
  "error": null,
  "output": [
    {
      "id": "msg_68c2",
      "type": "message",
      "role": "assistant",
      "content": [{ "type": "output_text", "text": "Hello", "annotations": [] }]
    }
  ],
  "usage": {
    "input_tokens": 36,
    "input_tokens_details": { "cached_tokens": 0 },
    "output_tokens": 87,
    "output_tokens_details": { "reasoning_tokens": 64 },
    "total_tokens": 123
  },
  "metadata": {}
}
"#,
        paths: OPENAI_RESPONSES,
        due: Some(36 + 5 * 87),
        second: "  \"usage\"",
        found: None,
    },
    ModelAnswer {
        name: "openai-responses-stream",
        kind: EVENTS,
        body: r#"event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_68c3","object":"response","status":"in_progress","output":[],"usage":null}}

event: response.in_progress
data: {"type":"response.in_progress","sequence_number":1,"response":{"id":"resp_68c3","object":"response","status":"in_progress","output":[],"usage":null}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_68c4","output_index":0,"content_index":0,"delta":"Hi","logprobs":[]}

event: response.completed
data: {"type":"response.completed","sequence_number":9,"response":{"id":"resp_68c3","object":"response","status":"completed","output":[{"id":"msg_68c4","type":"message","content":[{"type":"output_text","text":"Hi"}]}],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":0},"output_tokens":87,"output_tokens_details":{"reasoning_tokens":64},"total_tokens":123}}}

"#,
        paths: OPENAI_RESPONSES,
        due: Some(36 + 5 * 87),
        second: "event: response.in_progress",
        found: None,
    },
    ModelAnswer {
        name: "anthropic",
        kind: JSON,
        body: r#"{"id":"msg_01Xa","type":"message","role":"assistant","model":"a-model","content":[{"type":"text","text":"Hi! I am a model."}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":15,"service_tier":"standard"}}"#,
        paths: ANTHROPIC,
        due: Some(25 + 5 * 15),
        second: "\"stop_reason\"",
        found: None,
    },
    // The last event repeats the input.
    ModelAnswer {
        name: "anthropic-stream",
        kind: EVENTS,
        body: r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_01Xb","type":"message","role":"assistant","model":"a-model","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

"#,
        paths: ANTHROPIC,
        due: Some(25 + 5 * 15),
        second: "event: content_block_start",
        found: Some(25),
    },
    // Older versions say the input at the beginning alone.
    ModelAnswer {
        name: "anthropic-stream-older",
        kind: EVENTS,
        body: r#"event: message_start
data: {"type":"message_start","message":{"id":"msg_01Xc","type":"message","role":"assistant","content":[],"stop_reason":null,"usage":{"input_tokens":25,"output_tokens":1}}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hello"}}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":15}}

event: message_stop
data: {"type":"message_stop"}

"#,
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
        body: r#"{"id":"c14c80c3","finish_reason":"COMPLETE","message":{"role":"assistant","content":[{"type":"text","text":"Hello"}]},"usage":{"billed_units":{"input_tokens":5,"output_tokens":418},"tokens":{"input_tokens":71,"output_tokens":418}}}"#,
        paths: COHERE,
        due: Some(5 + 4 * 418),
        second: "\"usage\"",
        found: None,
    },
    ModelAnswer {
        name: "cohere-stream",
        kind: EVENTS,
        body: r#"event: message-start
data: {"type":"message-start","id":"29f14a5a","delta":{"message":{"role":"assistant","content":[],"tool_plan":"","tool_calls":[],"citations":[]}}}

event: content-delta
data: {"type":"content-delta","index":0,"delta":{"message":{"content":{"text":"Hello"}}}}

event: message-end
data: {"type":"message-end","delta":{"finish_reason":"COMPLETE","usage":{"billed_units":{"input_tokens":5,"output_tokens":418},"tokens":{"input_tokens":71,"output_tokens":418}}}}

"#,
        paths: COHERE,
        due: Some(5 + 4 * 418),
        second: "event: content-delta",
        found: None,
    },
    ModelAnswer {
        name: "mistral",
        kind: JSON,
        body: r#"{"id":"b1ef","created":1790000000,"model":"mistral-small-latest","usage":{"prompt_tokens":16,"total_tokens":50,"completion_tokens":34},"object":"chat.completion","choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","tool_calls":null,"content":"Hello"}}]}"#,
        paths: OPENAI_CHAT,
        due: Some(16 + 5 * 34),
        second: "\"object\"",
        found: Some(16 + 5 * 34),
    },
    ModelAnswer {
        name: "mistral-stream",
        kind: EVENTS,
        body: r#"data: {"id":"b1f0","object":"chat.completion.chunk","created":1790000000,"model":"mistral-small-latest","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}

data: {"id":"b1f0","object":"chat.completion.chunk","created":1790000000,"model":"mistral-small-latest","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":16,"total_tokens":50,"completion_tokens":34}}

data: [DONE]

"#,
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
