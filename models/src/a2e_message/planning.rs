//! Plans and their tasks. Requests have no `/req` here.
//!
//! Source: docs/protocols/a2e-messages.md §2.

use crate::json::Object;
use a2abus_plugin::Text;

records! {
    /// Creates a plan.
    "planning/plan/create" => PlanningPlanCreateRequest {
        name: Text = "default",
        columns: Vec<Text> = [],
        description: Text = "",
    }
    /// Requests the list of plans.
    "planning/plan/list" => PlanningPlanListRequest {}
    /// Adds a task to a plan.
    "planning/task/add" => PlanningTaskAddRequest {
        plan_id: Text,
        title: Text,
        status: Text = "backlog",
        description: Text = "",
        assignee: Text = "",
        deps: Vec<Text> = [],
        metadata: Object = {},
    }
    /// Changes a task.
    "planning/task/update" => PlanningTaskUpdateRequest {
        plan_id: Text,
        task_id: Text,
        status: Text = "",
        assignee: Text = "",
        deps: Vec<Text> = [],
    }
    /// Requests the list of tasks.
    "planning/task/list" => PlanningTaskListRequest {
        plan_id: Text = "",
        status: Text = "",
    }
    /// Requests the boards of plans.
    "planning/plan/board" => PlanningPlanBoardRequest {
        plan_id: Text = "",
    }
    /// The created plan.
    "planning/plan/create/resp" => PlanningPlanCreateResponse {
        req_id: Text = "",
        success: bool = false,
        plan_id: Text = "",
        columns: Vec<Text> = [],
    }
    /// The list of plans.
    "planning/plan/list/resp" => PlanningPlanListResponse {
        req_id: Text = "",
        plans: Vec<Object> = [],
    }
    /// The added task.
    "planning/task/add/resp" => PlanningTaskAddResponse {
        req_id: Text = "",
        success: bool = false,
        task_id: Text = "",
        status: Text = "",
    }
    /// Whether the task was changed.
    "planning/task/update/resp" => PlanningTaskUpdateResponse {
        req_id: Text = "",
        success: bool = false,
        task_id: Text = "",
    }
    /// The list of tasks.
    "planning/task/list/resp" => PlanningTaskListResponse {
        req_id: Text = "",
        tasks: Vec<Object> = [],
    }
    /// The boards of plans.
    "planning/plan/board/resp" => PlanningPlanBoardResponse {
        req_id: Text = "",
        boards: Vec<Object> = [],
    }
}
