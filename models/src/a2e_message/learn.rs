//! Learning: feedback, experiences, refinements.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use super::value::{Float, Generated, Integer, Problem, Violation};
use crate::json::{Json, Object};
use a2abus_plugin::Text;

records! {
    /// Gives feedback.
    "learn/feedback/req" => LearnFeedbackRequest {
        feedbacks: Vec<Feedback>,
    }
    /// How much feedback was recorded.
    "learn/feedback/resp" => LearnFeedbackResponse {
        req_id: Text = "",
        recorded: Integer = 0,
        new_score: Option<Float> = null,
    }
    /// Stores experiences for replay.
    "learn/experience/req" => LearnExperienceRequest {
        experiences: Vec<Experience> = [],
    }
    /// How many experiences were stored.
    "learn/experience/resp" => LearnExperienceResponse {
        req_id: Text = "",
        stored: Integer = 0,
    }
    /// Adapts a component; an empty name means all.
    "learn/adapt/req" => LearnAdaptRequest {
        component_name: Text = "",
        strategy: AdaptStrategy = default,
    }
    /// The adapted components.
    "learn/adapt/resp" => LearnAdaptResponse {
        req_id: Text = "",
        updated: Vec<Object> = [],
        message: Text = "",
    }
    /// Requests the performance of components.
    "learn/stats/req" => LearnStatsRequest {
        component_name: Text = "",
    }
    /// The performance of components.
    "learn/stats/resp" => LearnStatsResponse {
        req_id: Text = "",
        components: Vec<Object> = [],
    }
    /// Requests a plan to refine a component.
    "learn/refinement/plan/req" => LearnRefinementPlanRequest {
        component_name: Text = "",
        scope: Text = "local",
    }
    /// The plan to refine a component.
    "learn/refinement/plan/resp" => LearnRefinementPlanResponse {
        req_id: Text = "",
        plan_id: Text = "",
        proposals: Vec<Object> = [],
        status: Text = "",
    }
    /// Applies a proposal.
    "learn/refinement/apply/req" => LearnRefinementApplyRequest {
        proposal: Object = {},
    }
    /// The applied parts of the proposal.
    "learn/refinement/apply/resp" => LearnRefinementApplyResponse {
        req_id: Text = "",
        refinement_id: Text = "",
        applied_edits: Integer = 0,
        failed_edits: Integer = 0,
        rollback_available: bool = false,
        error: Text = "",
    }
    /// Rolls a refinement back.
    "learn/refinement/rollback/req" => LearnRefinementRollbackRequest {
        refinement_id: Text = "",
    }
    /// Whether the refinement was rolled back.
    "learn/refinement/rollback/resp" => LearnRefinementRollbackResponse {
        req_id: Text = "",
        refinement_id: Text = "",
        rolled_back: bool = false,
        error: Text = "",
    }
    /// Requests a review of a proposal.
    "learn/refinement/review/req" => LearnRefinementReviewRequest {
        proposal: Object = {},
    }
    /// The review of a proposal.
    "learn/refinement/review/resp" => LearnRefinementReviewResponse {
        req_id: Text = "",
        approved: bool = false,
        confidence_adjusted: Float = 0.0,
        reasons: Vec<Text> = [],
        risk_level: Text = "low",
    }
    /// Requests the history of refinements.
    "learn/refinement/history/req" => LearnRefinementHistoryRequest {}
    /// The history of refinements.
    "learn/refinement/history/resp" => LearnRefinementHistoryResponse {
        req_id: Text = "",
        entries: Vec<Object> = [],
    }
    /// The rated object.
    RatedTurn {
        prompt: Text,
        response: Text,
        model: Text,
        environment: Json = null,
        version: Option<Text> = null,
    }
    /// Feedback on a turn or a call; `score` from -1 to 1.
    Feedback if correction_is_given {
        feedback_id: Generated<Text> = new_id,
        correlation_id: Text = "",
        session_id: Text = "",
        rated_turn: Option<RatedTurn>,
        polarity: Polarity,
        score: Float = 0.0,
        dimension: Dimension = default,
        confidence: Float = 1.0,
        comment: Text = "",
        correction: Text = "",
        correction_span: Option<[Integer; 2]> = null,
        source: FeedbackSource = default,
        annotator_id: Text = "",
        ts: Generated<Float> = now,
    }
    /// A step to replay: state, action, reward, next state.
    Experience {
        experience_id: Generated<Text> = new_id,
        state: Object = {},
        action: Object = {},
        reward: Float = 0.0,
        next_state: Object = {},
        done: bool = false,
        episode_id: Text = "",
        step: Integer = 0,
        ts: Generated<Float> = now,
    }
}

member_words! {
    /// How to adapt a component.
    AdaptStrategy {
        #[default]
        Ppo = "ppo",
        Ucb1 = "ucb1",
        EpsilonGreedy = "epsilon_greedy",
        Softmax = "softmax",
        Custom = "custom",
    }
    /// The direction of feedback; corrective feedback contains a correction.
    Polarity {
        #[default]
        Positive = "positive",
        Negative = "negative",
        Neutral = "neutral",
        Corrective = "corrective",
    }
    /// What the feedback is about.
    Dimension {
        #[default]
        Helpfulness = "helpfulness",
        Correctness = "correctness",
        Safety = "safety",
        Tone = "tone",
        PlanQuality = "plan_quality",
    }
    /// The author of feedback.
    FeedbackSource {
        #[default]
        Human = "human",
        Env = "env",
        Own = "self",
    }
}

fn correction_is_given(feedback: &Feedback) -> Result<(), Violation> {
    if feedback.polarity == Polarity::Corrective && feedback.correction.is_empty() {
        return Err(Violation::new(
            "correction",
            Problem::Wrong("a correction that is not empty"),
        ));
    }
    Ok(())
}
