"""`bo-scale survey …`: surveys from the command line. Everything it does, `bo_scale.survey.Survey` does."""

from bo_scale.cli.command import Tool
from bo_scale.cli.survey.init import INIT
from bo_scale.cli.survey.map import MAP
from bo_scale.cli.survey.model import MODEL
from bo_scale.cli.survey.plan import PLAN
from bo_scale.cli.survey.predict import PREDICT
from bo_scale.cli.survey.report import REPORT
from bo_scale.cli.survey.status import STATUS
from bo_scale.cli.survey.update import UPDATE

SURVEY = Tool(
    "survey",
    "plan surveys and map their results",
    "Turn measurements into a plan and a map.",
    (INIT, PLAN, UPDATE, MAP, PREDICT, REPORT, MODEL, STATUS),
)
